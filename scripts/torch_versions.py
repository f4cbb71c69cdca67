"""Tries every strategy of stack `torch` on older versions of torch: each through its gate, on CPUs.

    python scripts/torch_versions.py          # all of VERSIONS: minutes, and 5 GB for each to be installed
    python scripts/torch_versions.py 2.5.1    # one version

A version is installed once, with all that the registry's torch needs, into ~/.cache/torch-relay/versions/VERSION.
Writes the table of docs/torch-versions.md from what has been tried, and what each version's torchrun understands into
tests/torchrun_options.json. Exits 1 where a strategy's declared `least_torch` and what it did do not agree.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from relay.base import entry
from relay.base.files import read_json, read_json_or, write_json
from relay.config.config import load
from relay.environments import kept
from relay.planning.inputs import Here
from relay.planning.planner import make_plan
from relay.run_folder.places import dataset_folder
from relay.spec import strategy_files
from relay.spec.run import Gate, Reference
from relay.spec.versions import too_old
from relay.task.prepared import prepare_data

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("2.5.1", "2.8.0")  # the oldest that a seed names, and one between it and the lock's
TABLE = "<!-- `python scripts/torch_versions.py` writes what follows. -->"
PAGE, OPTIONS = ROOT / "docs" / "torch-versions.md", ROOT / "tests" / "torchrun_options.json"
STEPS = 20
COMMON = {"epochs": 1, "gate": {"steps": STEPS}, "device": "cpu", "global_batch_size": 8, "repeats": 1}
CONFIGS = (
    {
        "task": "gpt-deep-tiny",
        "comparisons": [
            {"strategy": "cpu"},
            {"strategy": "mps", "processes_per_device": 2},
            *({"strategy": name, "devices_per_node": 2} for name in ("ddp", "model_parallel", "pipeline")),
            *({"strategy": name, "devices_per_node": 2} for name in ("tensor_parallel", "fsdp")),
            {"strategy": "fsdp", "devices_per_node": 2, "options": {"offload": True}},
            *({"strategy": name, "devices_per_node": 4} for name in ("pipeline_ddp", "fsdp_tensor_parallel")),
        ],
    },
    {"task": "gpt-moe-tiny", "comparisons": [{"strategy": "expert_parallel", "devices_per_node": 2}]},
)
PROVEN = "proven"
INSTALLED = "import importlib.metadata as m; print(m.version('torch'))"
PARSER = "from torch.distributed.run import get_args_parser as p; print(*sorted(p()._option_string_actions))"


@dataclass
class Tried:
    """What a strategy did on a version: PROVEN, or the first thing that went wrong."""

    strategy: str
    options: str
    outcome: str


def python_of(version: str) -> Path:
    """The interpreter of an environment with that torch, which is made unless it is there."""
    folder = kept.cache() / "versions" / version
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"Installing torch {version} into {folder}: minutes, and gigabytes", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        wanted = [f"torch=={version}", "torchvision", "numpy", "pillow", "psutil", "setuptools"]
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"]
        subprocess.run([*pip, *wanted], check=True)
        (folder / "complete").touch()
    return python


def asked_of(python: Path, program: str) -> str:
    """What a program prints in that interpreter."""
    return subprocess.run([str(python), "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def gates(strategies: list[str] | None) -> list[tuple[Gate, Reference]]:
    """Every strategy's gate, on as many processes as it needs at least, with its reference."""
    pairs = []
    for own in CONFIGS:
        config = load(COMMON | own)
        call_plan = make_plan(config, Here.of(config, gpus=0))
        assert not call_plan.skipped, call_plan.skipped
        pairs += [(gate, call_plan.references[call_plan.reference_of[name]]) for name, gate in call_plan.gates.items()]
    return [pair for pair in pairs if not strategies or pair[0].strategy.name in strategies]


def tries(version: str, folder: Path, strategies: list[str] | None) -> list[Tried]:
    """Each gate on that version, one after the other."""
    python, results = python_of(version), folder / version
    there = asked_of(python, INSTALLED)
    tried = []
    for gate, reference in gates(strategies):
        chosen = strategy_files.chosen(Path(gate.strategy.file), gate.strategy.options)
        options = ", ".join(f"{name} {value}" for name, value in chosen.items())
        place = replace(gate.place, torch_version=there)
        outcome = judged(python, results, replace(gate, place=place), replace(reference, place=place))
        tried.append(Tried(gate.strategy.name, options, outcome))
        print(f"torch {there}: {gate.strategy.name}{options and f' ({options})'}: {outcome}", flush=True)
    return tried


def judged(python: Path, results: Path, gate: Gate, reference: Reference) -> str:
    """What a gate says on that interpreter: PROVEN, or why not, in one line."""
    data = dataset_folder(results, gate.dataset)
    if not data.is_dir():
        prepare_data(gate.task, gate.dataset, data)
    trained = results / "references" / reference.id / "reference.pt"
    if not trained.exists():
        reference.write(trained.with_name("reference.json"))
        if problem := job(python, results, "reference", "--spec", trained.with_name("reference.json"), trained):
            return problem
    place = results / "gates" / gate.id
    gate.write(place / "gate.json")
    output = place / "verdict.json"
    if problem := job(python, results, "gate", "--reference", trained, "--spec", place / "gate.json", output):
        return problem
    verdict = read_json(output)
    return PROVEN if verdict["equivalent"] else verdict["problems"][0]


def job(python: Path, results: Path, command: str, *arguments: object) -> str | None:
    """Run one of `relay`'s commands on that interpreter, its last argument being its output; why it failed."""
    *given, output = map(str, arguments)
    words = [str(python), str(ROOT / entry.MAIN), command, *given, "--output", output, "--results", str(results)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    Path(output).with_suffix(".log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return None if done.returncode == 0 else (done.stderr.strip() or done.stdout).rpartition("\n")[2]


def disagreements(version: str, tried: list[Tried]) -> list[str]:
    """Strategies that do something else on that version than their `least_torch` says."""
    problems = []
    for each in tried:
        least = strategy_files.read(strategy_files.find()[each.strategy]).least_torch
        if (each.outcome == PROVEN) == (too_old("torch", version, least) is not None):
            problems.append(f"{each.strategy}: least_torch is {least}; on torch {version}: {each.outcome}")
    return problems


def table(tried_by_version: dict[str, list[Tried]]) -> str:
    """The page's table: a row for each strategy, a column for each version."""
    rows = [f"| strategy | {' | '.join(f'torch {version}' for version in tried_by_version)} |"]
    rows.append("| --- " * (len(tried_by_version) + 1) + "|")
    first = next(iter(tried_by_version.values()))
    for place, each in enumerate(first):
        name = f"`{each.strategy}`" + (f", {each.options}" if each.options else "")
        rows.append(f"| {name} | {' | '.join(tried[place].outcome for tried in tried_by_version.values())} |")
    return "\n".join(rows)


def tried_so_far(folder: Path) -> dict[str, list[Tried]]:
    """What has been tried so far, by version."""
    results_by_version = {version: read_json_or(folder / f"{version}.json", None) for version in VERSIONS}
    return {version: [Tried(**each) for each in tried] for version, tried in results_by_version.items() if tried}


def main() -> int:
    """Parse the command line, try the versions, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help=f"versions of torch (default: {', '.join(VERSIONS)})")
    parser.add_argument("--strategy", action="append", help="only this strategy (may be repeated); writes no table")
    parser.add_argument("--folder", type=Path, default=Path("results/torch-versions"), help="where everything goes")
    given = parser.parse_args()
    folder, problems = given.folder.resolve(), []
    for version in given.versions or VERSIONS:
        tried = tries(version, folder, given.strategy)
        problems += disagreements(version, tried)
        if not given.strategy:
            write_json(folder / f"{version}.json", [vars(each) for each in tried])
            options = read_json_or(OPTIONS, {}) | {version: asked_of(python_of(version), PARSER).split()}
            write_json(OPTIONS, options)
    if set(VERSIONS) <= set(tried_by_version := tried_so_far(folder)):
        head = PAGE.read_text(encoding="utf-8").partition(TABLE)[0]
        PAGE.write_text(f"{head}{TABLE}\n\n{table(tried_by_version)}\n", encoding="utf-8")
    print("\n".join(problems) or "all as declared")
    return int(bool(problems))


if __name__ == "__main__":
    entry.run(main)
