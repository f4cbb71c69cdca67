"""How exactly a step's split tells where time goes: waits of a known length are planted in the steps of two processes.

The loader sleeps, the optimizer sleeps, and the second process computes longer, for which the first one waits. What the
split then says of each part, less what it says without these, is divided by what was planted: 1 is exact. CPUs only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import torch.multiprocessing as mp
from common import free_port, report, short_run

from relay.process import machine
from relay.process.ranks import Ranks
from relay.run_folder.places import dataset_folder
from relay.run_folder.step_split import StepSplit
from relay.spec.run import Run, changed
from relay.task import data
from relay.training.trainer import Trainer

PROCESSES = 2
# Each part with the process that should see it, and whether it is seen there as computing or as waiting.
PLANTED = (("data", 0), ("data", 1), ("optimizer", 0), ("optimizer", 1), ("communication", 0), ("compute", 1))


def train(run: Run, ranks: Ranks, dataset: Path, work: Path, seconds: float) -> StepSplit | None:
    """Train with waits of so many seconds in every step; what was seen of the observed steps."""
    if ranks.rank == 0:
        work.mkdir()
    ranks.gather(None)
    quick = data.Resident.raws

    def slow_batches(self: data.Resident, lists: Any) -> Iterator[Any]:
        for batch in quick(self, lists):
            time.sleep(seconds)
            yield batch

    with mock.patch.object(data.Resident, "raws", slow_batches), redirect_stdout(sys.stderr):
        trainer = Trainer(run, ranks, dataset, work, attempt=1, measured={})
        strategy: Any = trainer.strategy
        step = strategy.train_step
        strategy.train_step = lambda *batch: (_compute(seconds * ranks.rank), step(*batch))[1]
        strategy.optimizer.register_step_pre_hook(lambda *_: time.sleep(seconds))
        trainer.train(0, run.length.total_steps)
    return StepSplit.read(work)


def _compute(seconds: float) -> None:
    """Keep a CPU busy for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def ratios_of(found: StepSplit, without: StepSplit, seconds: float) -> dict[str, float]:
    """What was found of each part that was planted, over what was planted."""
    return {
        f"{part} of process {rank}": (found.ranks[rank][part] - without.ranks[rank][part]) / seconds
        for part, rank in PLANTED
    }


def measure(rank: int, run: Run, given: argparse.Namespace, folder: Path) -> None:
    """One of the processes; the first one prints."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    machine.set_threads(1, 1)
    ranks, dataset = Ranks.join("cpu", "gloo"), dataset_folder(folder, run.dataset)
    found: dict[str, list[float]] = {}
    for place in range(given.rounds):
        plain = train(run, ranks, dataset, folder / f"plain-{place}", 0.0)
        planted = train(run, ranks, dataset, folder / f"planted-{place}", given.milliseconds / 1000)
        if rank == 0 and plain and planted:
            for name, ratio in ratios_of(planted, plain, given.milliseconds / 1000).items():
                found.setdefault(name, []).append(ratio)
    if rank == 0:
        parts = {name: round(statistics.median(each), 4) for name, each in found.items()}
        report(
            "time that the split finds where it was planted, over what was planted",
            [statistics.mean(each) for each in zip(*found.values(), strict=True)],
            parts=parts, planted_milliseconds=given.milliseconds, global_batch_size=given.global_batch_size,
        )  # fmt: skip
    ranks.leave()


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--milliseconds", type=float, default=5.0, help="planted in each part of each step")
    given = parser.parse_args()
    os.environ |= {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with tempfile.TemporaryDirectory() as folder:
        comparison = {
            "strategy": "ddp",
            "devices_per_node": PROCESSES,
            "global_batch_size": given.global_batch_size,
        }
        run = short_run({"task": "lenet-synthetic", "comparisons": [comparison]}, given.steps, Path(folder))
        run = changed(run, monitor_seconds=0.0, observed_steps=given.steps // 20)
        mp.spawn(measure, args=(run, given, Path(folder)), nprocs=PROCESSES)


if __name__ == "__main__":
    main()
