"""Trainings in the test's own process, and their checkpoints; `prepared` is `chain_runs`'s."""

from dataclasses import dataclass
from pathlib import Path

import torch

from chain_runs import DROPOUT
from own_tasks import data_of
from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.tasks import TaskSpec
from relay.strategies.base import Strategy
from relay.task.bound import BoundTask
from relay.task.data import Resident
from relay.task.split import chosen
from relay.training.checkpoint import Trained


@dataclass
class Checkpoints:
    """A run's folder, in which any strategy's training saves, and from which it resumes, each in a job of its own."""

    directory: Path
    ranks: Ranks

    def of(self, strategy: Strategy) -> Trained:
        return Trained(strategy, self.ranks, self.directory)

    def save(self, strategy: Strategy, step: int) -> None:
        self.of(strategy).saver().save(step)

    def resume(self, strategy: Strategy, first: int, last: int) -> int:
        trained = self.of(strategy)
        return trained.go_on(trained.saver(), first, last)


class Training:
    """A strategy with its batches, trained step by step; `prepared` has the prepared data of its task."""

    def __init__(self, ranks: Ranks, prepared: Path, its: TaskSpec = DROPOUT, precision: str = "fp32") -> None:
        data, self.batch = data_of(its, prepared), its.global_batch_size
        folder, per_epoch = prepared / data.directory_name, data.train_count // self.batch
        task = BoundTask(its, 5, precision, per_epoch, 100, folder=folder)
        self.strategy: Strategy = strategies.load("cpu")(task, ranks, self.batch, {})
        self.data = Resident(task.split("train"), ranks.device)
        torch.manual_seed(5)
        self.step = 0

    def train(self, steps: int) -> list[float]:
        """Losses of this many further steps."""
        losses = []
        for step in range(self.step, self.step + steps):
            self.strategy.set_learning_rate(self.strategy.task.learning_rate(step))
            which = chosen(len(self.data.split), self.batch, 5, step)
            losses.append(self.strategy.train_step(self.data.fetch(which)))
        self.step += steps
        return [loss.item() for loss in losses]

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.strategy.whole_model().items()}


def filled(checkpoints: Checkpoints, training: Training, *steps: int) -> None:
    """Train to each step and save there."""
    for step in steps:
        training.train(step - training.step)
        checkpoints.save(training.strategy, step)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.directory.iterdir() if path.is_dir())
