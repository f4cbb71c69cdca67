"""What the benchmarks share: a run of the workflow, the centres' scripts and data, and how ratios are told."""

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import torch

from relay.config.config import load
from relay.planning.inputs import Here
from relay.planning.planner import make_plan
from relay.run_folder import run_chain
from relay.run_folder.places import Places, dataset_folder
from relay.run_folder.snapshot import freeze
from relay.spec.run import Run
from relay.task.prepared import prepare_data

ROOT = Path(__file__).resolve().parents[1]
# Where the centres' pages and the data that they train on may lie.
PAGES, DATA = ROOT.parent / "shared/seeds", ROOT.parent / "shared/data"


def workflow_run(config: Mapping[str, Any], results: Path, *, root: Path | None = None) -> Run:
    """The one run that a config asks for, by default on CPUs, with the files that the workflow makes for its job.

    Exits with the planner's reasons where it skips the run.
    """
    loaded = load({"device": "cpu", "repeats": 1, **config})
    planned = make_plan(loaded, Here.of(loaded), root=ROOT, may="prepare")
    if not planned.runs:
        sys.exit("; ".join(reason for each in planned.skipped for reason in each.reasons))
    (run,) = planned.runs
    prepare_data(run.task, run.dataset, dataset_folder(results, run.dataset), root=root)
    freeze(Path(run.strategy.file), folder=Places(results, run.id).code)
    return written(run, results)


def short_run(config: Mapping[str, Any], steps: int, results: Path, data: Path = DATA) -> Run:
    """The one run of a config, of so many steps and without evaluations; CIFAR-10's archive lies in `data`."""
    cifar10 = config["task"].endswith("cifar10")
    root = unpacked("cifar-10-batches-py.tar.xz", results / "archive", data) if cifar10 else None
    run = workflow_run(config, results, root=root)
    return replace(run, length=replace(run.length, total_steps=steps, evaluate_every_steps=steps + 1))


def written(run: Run, results: Path) -> Run:
    """The run, with the files that its job needs."""
    folder = Places(results, run.id).run
    run.write(folder / "run.json")
    (folder / run_chain.START).write_text('{"generation": "benchmark"}')
    return run


def trained(run: Run, results: Path, variables: Mapping[str, str] = MappingProxyType({}), *, after: int = 0) -> float:
    """Samples per second of the steps that the run's job records `after` so many, to its last; it is begun anew.

    `variables` join the job's environment. Raises SystemExit with what the job printed, where it fails.
    """
    places = Places(results, run.id)
    shutil.rmtree(places.work, ignore_errors=True)
    shutil.rmtree(places.run)  # what it knows of its checkpoints
    written(run, results)
    command = [sys.executable, str(ROOT / "scripts/main.py"), "train", "--run", run.id, "--results", str(results)]
    command += ["--first", "0", "--last", str(run.length.total_steps)]
    called(f"the run {run.id}", command, variables)
    lines = [json.loads(line) for path in places.work.glob("records/*.jsonl") for line in path.read_text().splitlines()]
    blocks = [block for line in lines for block in line.get("blocks", ()) if block[0] >= after]
    steps, seconds = sum(block[1] - block[0] for block in blocks), sum(block[2] for block in blocks)
    return steps * run.batch.global_batch_size / seconds


def called(
    what: str, command: Sequence[str], variables: Mapping[str, str] = MappingProxyType({}), folder: Path = ROOT
) -> str:
    """What a command printed that ran in a folder, with these in its environment. Exits with that where it fails."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, check=False, text=True, **pipes)
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stdout}")
    return done.stdout


def unpacked(archive: str, folder: Path, data: Path = DATA) -> Path:
    """The folder, into which an archive of real data is unpacked once. Exits where there is none."""
    if not (data / archive).is_file():
        sys.exit(f"left out: {data / archive} is not here; name its folder by --data")
    if not (folder / archive).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(data / archive) as opened:
            opened.extractall(folder, filter="data")
        (folder / archive).touch()
    return folder


def page_script(name: str, pages: Path = PAGES) -> str:
    """A script of the Alliance's page on PyTorch, as it stands there. Exits where the page is not here."""
    page = next(pages.glob("000_*.txt"), None)
    if page is None:
        sys.exit(f"left out: the page with {name} is not in {pages}; name its folder by --pages")
    text = re.search(rf"\|name={re.escape(name)}\n.*?contents=\n(.*?)\n\}}\}}", page.read_text(), re.DOTALL)
    if text is None:
        sys.exit(f"left out: {page} has no script {name}")
    return text[1] + "\n"


def report(question: str, ratios: list[float], **figures: object) -> None:
    """Print the median ratio with its quartiles, and on what it was measured."""
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    machine = {"torch": torch.__version__, "python": platform.python_version(), "cpus": os.cpu_count()}
    quartiles = [round(low, 4), round(high, 4)]
    summary = {"question": question, "median_ratio": round(median, 4), "quartiles": quartiles, "rounds": len(ratios)}
    print(json.dumps(summary | figures | machine, indent=1))
