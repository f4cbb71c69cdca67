"""How the two ways of feeding data compare: batches of `resident` over batches of `dataloader`, without a model."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from common import report, synthetic_run

from relay.process import machine
from relay.spec.run import Run
from relay.task.bound import BoundTask
from relay.task.data import feeder
from relay.task.split import Split, chosen


def seconds(kind: str, run: Run, split: Split, workers: int) -> float:
    """Seconds until the last of the run's batches is there."""
    fed = feeder(kind, split, torch.device("cpu"), workers)
    lists = (chosen(len(split), run.batch.global_batch_size, run.seed, step) for step in range(run.length.total_steps))
    started = time.perf_counter()
    for _ in fed.batches(lists):
        pass
    return time.perf_counter() - started


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    given = parser.parse_args()
    machine.set_threads(1, 1)
    with tempfile.TemporaryDirectory() as folder:
        run = synthetic_run(Path(folder) / "dataset", given.steps, given.global_batch_size)
        split = BoundTask.of(run, Path(folder) / "dataset").split("train")
        seconds("resident", run, split, 0)  # warm-up
        ratios = []
        for _ in range(given.rounds):
            streamed = seconds("dataloader", run, split, given.workers)
            ratios.append(streamed / seconds("resident", run, split, 0))
    speed = given.steps * given.global_batch_size / streamed
    report("resident over dataloader, images/s", ratios, dataloader_images_per_second=round(speed),
           global_batch_size=run.batch.global_batch_size, workers=given.workers)  # fmt: skip


if __name__ == "__main__":
    main()
