"""What a hop of a chain costs: from a job's first line to its first training step, by phases, beside `import torch`.

Segments of a run are trained one after the other, as jobs of a cluster are, but without Snakemake and Slurm. Each goes
on from the checkpoint of the one before. In between a process is timed that only imports torch. All is told as ratios
to that. Python's audit events tell when a phase begins: they change nothing in what is run.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import ROOT, called, report, workflow_run

from relay.spec.run import Run

STEPS = 5  # of each segment
# Python runs this file at the start of each process that finds it. It notes the first event of each kind. The job's
# processes find it because the job hands on its place: their own path has the run's code alone.
MARKS = """
import os, sys, time
_seen = set()
_files = {"run.json": "run is read", "manifest.json": "dataset is mapped", ".metadata": "checkpoint is loaded"}
def _note(what):
    if (os.getpid(), what) not in _seen:
        _seen.add((os.getpid(), what))
        with open(os.environ["HOP_MARKS"], "a") as stream:
            stream.write(f"{time.time()}\\t{os.getpid()}\\t{os.environ.get('RANK', '')}\\t{what}\\n")
def _hook(event, arguments):
    if event == "import" and arguments[0] in ("torch", "torch.distributed.checkpoint", "torch._dynamo"):
        _note(f"imports {arguments[0]}")
    elif event == "import" and arguments[0] == "relay.training.job":
        _note("job imports its modules")
    elif event == "subprocess.Popen" and "relay.launch" in " ".join(map(str, arguments[1] or ())):
        _note("starts its processes")
        if arguments[3]:
            arguments[3]["PYTHONPATH"] = os.pathsep.join([arguments[3]["PYTHONPATH"], os.path.dirname(__file__)])
    elif event == "socket.__new__" and "RANK" in os.environ:
        _note("joins")
    elif event == "os.fork":
        _note("forks")
    elif event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        name = os.path.basename(os.fspath(arguments[0]))
        if name in _files:
            _note(_files[name])
        elif arguments[1] == "a" and os.path.basename(os.path.dirname(os.fspath(arguments[0]))) == "records":
            _note("first step")
_note("Python is up")
sys.addaudithook(_hook)
"""


def declared_run(folder: Path, strategy: str, processes: int) -> Run:
    """A run on the digits."""
    comparison = {"strategy": strategy, "devices_per_node": processes}
    return workflow_run({"task": "lenet-digits", "comparisons": [comparison]}, folder)


def hop(folder: Path, run: Run, first: int) -> dict[str, float]:
    """Seconds from the start of a segment's job to the first event of each phase, in the order of time."""
    marks = folder / f"marks-{first}"
    site = folder / "job"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(MARKS)
    command = [sys.executable, str(ROOT / "scripts/main.py"), "train", "--run", run.id, "--results", str(folder)]
    began = time.time()
    command += ["--first", str(first), "--last", str(first + STEPS)]
    called(f"the segment from step {first}", command, {"HOP_MARKS": str(marks), "PYTHONPATH": str(site)})
    ended = time.time()
    return dict(_phases(marks.read_text(), began)) | {"the job's end": ended - began}


def _phases(text: str, began: float) -> Iterator[tuple[str, float]]:
    """Each phase with its begin in the first process that comes to it: the job, the launcher, or rank 0."""
    lines = [line.split("\t") for line in text.splitlines()]
    order: list[str] = []
    for _, pid, rank, _ in lines:
        if pid not in order and (rank in ("", "0")):
            order.append(pid)
    names = dict(zip(order, ("job", "launcher", "rank"), strict=False))
    if len(order) == 2:  # no launcher
        names[order[1]] = "rank"
    for at, pid, _, what in lines:
        if pid in names:
            yield f"{names[pid]}: {what}", float(at) - began


def import_torch() -> float:
    """Seconds of a process that only imports torch."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began


def measure(folder: Path, strategy: str, processes: int, rounds: int) -> tuple[list[float], dict[str, Any]]:
    """The ratios of hops to `import torch`, and the medians of the phases' begins as such ratios."""
    run = declared_run(folder, strategy, processes)
    hop(folder, run, 0)  # the first segment of a run, and what Python compiles at first
    ratios, alone, phases = [], [], []
    for number in range(1, rounds + 1):
        alone.append(min(import_torch(), import_torch()))
        phases.append(hop(folder, run, number * STEPS))
        ratios.append(next(at for what, at in phases[-1].items() if what.endswith("first step")) / alone[-1])
    torch = statistics.median(alone)
    names = [name for name in phases[-1] if all(name in begun for begun in phases)]
    begins = {name: round(statistics.median(begun[name] for begun in phases) / torch, 2) for name in names}
    return ratios, {"import_torch_seconds": round(torch, 2), "begins_at": begins}


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ratios, figures = measure(Path(folder), given.strategy, given.processes, given.rounds)
    question = "from a job's first line to its first step, divided by the time of `import torch`"
    report(question, ratios, strategy=given.strategy, processes=given.processes, steps=STEPS, **figures)


if __name__ == "__main__":
    main()
