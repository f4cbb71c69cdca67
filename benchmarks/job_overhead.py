"""What a call of the workflow costs beside its training: CPU seconds, by where they are spent.

A tiny call is run from nothing to the report in a folder of its own: one strategy on the digits. Each part is also
measured alone, so that the table says which of them is worth shortening.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = {"task": "lenet-digits", "device": "cpu", "repeats": 1, "gate": {"steps": 20}}


def cpu_seconds(command: Sequence[str | Path], folder: Path) -> tuple[float, str]:
    """CPU seconds of a command and of all its processes, and what it printed. Raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "SNAKEMAKE_PROFILE": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def importing(modules: str, folder: Path) -> float:
    """CPU seconds of a process that only imports these; the first time is left out, in which they may be compiled."""
    command = [sys.executable, "-c", f"import {modules}"]
    return min(cpu_seconds(command, folder)[0] for _ in range(3))


def trained_seconds(folder: Path) -> float:
    """Seconds of all runs' measured steps, as they recorded them: one thread each, so CPU seconds."""
    return sum(
        block[2]  # first step, last step, seconds, …
        for work in folder.glob("results/checkpoints/*")
        for path in work.glob("records/*.jsonl")
        for line in map(json.loads, path.read_text().splitlines())
        for block in line.get("blocks", ())
    )


def measure(folder: Path, strategy: str, devices: int, epochs: float) -> dict[str, float]:
    """CPU seconds by part, of a call from nothing to the report; `jobs` and `processes` are counts."""
    comparison = {"strategy": strategy, "devices_per_node": devices}
    (folder / "tiny.json").write_text(json.dumps(CONFIG | {"epochs": epochs, "comparisons": [comparison]}))
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", f"{ROOT}/Snakefile"]
    snakemake += ["--profile", f"{ROOT}/profiles/local", "--directory", str(folder), "--configfile", "tiny.json"]
    start = importing("snakemake.cli", folder)
    dry, printed = cpu_seconds([*snakemake, "--dry-run"], folder)
    counted = re.findall(r"(?m)^total\s+(\d+)$", printed)
    whole, _ = cpu_seconds(snakemake, folder)
    return {
        "jobs": float(counted[-1]) if counted else 0.0,
        "whole call": whole,
        "the training itself": trained_seconds(folder),
        "start of Snakemake, once": start,
        "reading the workflow and planning, once": max(0.0, dry - start),
        "entry point of a job, each": importing("relay.training.job", folder),
        "torch and the trainer, each process that trains": importing("relay.training.trainer", folder),
        "torchrun, each job that uses it": importing("torch.distributed.run", folder),
    }


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="cpu")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=1.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.strategy, given.devices, given.epochs)
    print(json.dumps({name: round(value, 2) for name, value in found.items()}, indent=1))


if __name__ == "__main__":
    main()
