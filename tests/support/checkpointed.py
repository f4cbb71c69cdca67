"""Trainings in the test's own process, and their checkpoints; `prepared` is `chain_runs`'s.

A plugin of pytest for its fixtures, and a module that the tests import (hence PYTEST_DONT_REWRITE).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from chain_runs import DROPOUT, LIKE_MNIST
from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.dataset import DatasetSpec
from relay.spec.tasks import TaskSpec
from relay.strategies.base import Strategy
from relay.task.data import Resident, Split, batch_indices
from relay.task.task import Task
from relay.training.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """This process alone, with real process groups."""
    yield Ranks.join("cpu", "gloo")
    dist.destroy_process_group()


@pytest.fixture
def checkpoints(tmp_path: Path, ranks: Ranks) -> Checkpoints:
    (tmp_path / "run-1").mkdir()
    return Checkpoints(tmp_path / "run-1", ranks)


class Training:
    """A strategy with its batches, trained step by step."""

    def __init__(
        self,
        ranks: Ranks,
        prepared: Path,
        spec: TaskSpec = DROPOUT,
        its: DatasetSpec = LIKE_MNIST,
        precision: str = "fp32",
    ) -> None:
        self.batch = spec.global_batch_size
        its_task = Task(spec, its.classes, 5, precision, its.train_count // self.batch, 100)
        self.strategy: Strategy = strategies.load("cpu")(its_task, ranks, self.batch, {})
        self.split = Split(prepared / its.directory_name, "train", spec)
        self.data = Resident(self.split, ranks.device, torch.float32)
        torch.manual_seed(5)
        self.step = 0

    def train(self, steps: int) -> list[float]:
        """Losses of this many further steps."""
        losses = []
        for step in range(self.step, self.step + steps):
            self.strategy.set_learning_rate(self.strategy.task.learning_rate(step))
            losses.append(
                self.strategy.train_step(*self.data.fetch(batch_indices(len(self.split), self.batch, 5, step)))
            )
        self.step += steps
        return [loss.item() for loss in losses]

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.strategy.whole_model().items()}


@pytest.fixture
def training(ranks: Ranks, prepared: Path) -> Training:
    return Training(ranks, prepared)


def filled(checkpoints: Checkpoints, training: Training, *steps: int) -> None:
    """Train to each step and save there."""
    for step in steps:
        training.train(step - training.step)
        checkpoints.save(training.strategy, step)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.directory.iterdir() if path.is_dir())
