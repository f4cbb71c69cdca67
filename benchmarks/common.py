"""What the benchmarks share: a synthetic dataset, a single-process run on it, and how ratios are told."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import torch

from relay.spec.looked import Looked
from relay.spec.run import Run
from relay.spec.setting import Batch, Length, StrategySpec
from relay.spec.tasks import BUILT_IN
from relay.task.prepared import prepare_data


def synthetic_run(folder: Path, steps: int, global_batch_size: int) -> Run:
    """A LeNet run of that many steps on 10,000 synthetic images, prepared below the folder."""
    looked = Looked.read(BUILT_IN / "cards/lenet-synthetic.json")
    task, dataset = looked.task, looked.dataset
    prepare_data(task, dataset, folder)
    length = Length(
        epochs=1,
        steps_per_epoch=dataset.train_count // global_batch_size,
        total_steps=steps,
        evaluate_every_steps=steps + 1,
    )
    return Run(
        id="benchmark",
        setting_id="benchmark",
        repeat=0,
        seed=1,
        task=replace(task, global_batch_size=global_batch_size),
        dataset=dataset,
        strategy=StrategySpec(name="cpu", file=""),
        batch=Batch(global_batch_size=global_batch_size),
        length=length,
    )


# A process in between, which is small: a child inherits the peak memory of the process that starts it.
SPENT = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=2)
spent = resource.getrusage(resource.RUSAGE_CHILDREN)
print(spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 1024)
sys.exit(status)
"""


def spent(command: Sequence[str | Path], folder: Path) -> tuple[float, float]:
    """CPU seconds of a command and its processes, and the largest peak memory, in MB. Ends where it fails."""
    asked = [sys.executable, "-c", SPENT, *map(str, command)]
    done = subprocess.run(asked, cwd=folder, check=False, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{command[1]} failed:\n{done.stderr}")
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def report(question: str, ratios: list[float], **figures: object) -> None:
    """Print the median ratio with its quartiles, and on what it was measured."""
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3  # one round has no spread
    machine = {"torch": torch.__version__, "python": platform.python_version(), "cpus": os.cpu_count()}
    quartiles = [round(low, 4), round(high, 4)]
    told = {"question": question, "median_ratio": round(median, 4), "quartiles": quartiles, "rounds": len(ratios)}
    print(json.dumps(told | figures | machine, indent=1))
