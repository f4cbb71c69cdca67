"""What the product's loop costs: its images per second over those of a bare PyTorch loop, taken in turns."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch
from common import report, synthetic_run

from relay.process import machine
from relay.process.ranks import Ranks
from relay.spec.run import Run
from relay.task.bound import BoundTask
from relay.task.data import Resident
from relay.task.split import chosen
from relay.training.trainer import Trainer


def bare(run: Run, dataset: Path) -> float:
    """Seconds for the run's steps in a loop that does nothing else."""
    task = BoundTask.of(run, dataset)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    data = Resident(task.split("train"), torch.device("cpu"))
    started = time.perf_counter()
    for step in range(run.length.total_steps):
        batch = data.fetch(chosen(run.dataset.train_count, run.batch.global_batch_size, run.seed, step))
        optimizer.zero_grad()
        task.loss(task.outputs(model, batch), batch).backward()
        optimizer.step()
    return time.perf_counter() - started


def product(run: Run, ranks: Ranks, dataset: Path, work: Path) -> float:
    """Seconds for the same steps in the product's loop, the save at its end left out as the product leaves it out."""
    trainer = Trainer(run, ranks, dataset, work, attempt=1, measured={})
    blocks = []
    trainer.recorder.flush = lambda timed, _: blocks.extend(timed)  # type: ignore[method-assign]
    with redirect_stdout(sys.stderr):  # stdout is for the figures alone
        trainer.train(0, run.length.total_steps)
    return sum(block.seconds for block in blocks)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    machine.set_threads(given.threads, 1)
    ranks = Ranks.join("cpu", "gloo")
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "dataset"
        run = synthetic_run(dataset, given.steps, given.global_batch_size)
        bare(run, dataset)  # warm-up
        ratios = []
        for place in range(given.rounds):
            bare_seconds = bare(run, dataset)
            work = Path(folder) / f"work-{place}"
            work.mkdir()
            ratios.append(bare_seconds / product(run, ranks, dataset, work))
    images_per_second = run.length.total_steps * run.batch.global_batch_size / bare_seconds
    report("product's loop over bare loop, images/s", ratios, bare_images_per_second=round(images_per_second),
           global_batch_size=run.batch.global_batch_size, threads=given.threads)  # fmt: skip
    ranks.leave()


if __name__ == "__main__":
    main()
