"""What the tests of sharded strategies train: short tasks, strategies at their start, made-up batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay
from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.tasks import TaskSpec
from relay.strategies.base import Strategy
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.load import task_class

FP64 = {"precision": "fp64"}
GPT, MOE = {"task": "gpt-tiny"}, {"task": "gpt-moe-tiny"}
SAMPLES = 8


class Given(relay.Task):
    """A task of a model and a batch: its inputs, and one target. The loss is a mean over samples."""

    learning_rate, global_batch_size = 0.01, SAMPLES

    def __init__(self, make: Callable[[], nn.Module], inputs: Batch, targets: torch.Tensor) -> None:
        self.make, self.batch = make, (*inputs, targets)

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        return TensorDataset(*self.batch), TensorDataset(*self.batch)

    def model(self) -> nn.Module:
        return self.make()

    def loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        targets = batch[-1]
        if targets.is_floating_point():
            return F.mse_loss(outputs, targets)
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, self.learning_rate)


def bound(own: relay.Task, name: str, precision: str = "fp64", folder: Path = Path(), **changes: Any) -> BoundTask:
    """A task at the start of a training of ten steps."""
    spec = TaskSpec(name=name, global_batch_size=SAMPLES, learning_rate=own.learning_rate)
    made = BoundTask(spec, 5, precision, steps_per_epoch=10, total_steps=10, folder=folder, **changes)
    made.own = own
    return made


def of_task(name: str, folder: Path, precision: str = "fp32") -> BoundTask:
    """One of the package's own; its data are in the folder: see `prepared`."""
    return bound(task_class(TaskSpec(name=name, global_batch_size=1, learning_rate=1.0))(), name, precision, folder)


def prepared(name: str, folder: Path) -> Path:
    """The folder, with the data of one of the package's own tasks."""
    of_task(name, folder).own.prepare(folder)
    return folder


def built(name: str, ranks: Ranks, task: BoundTask, **options: Any) -> Strategy:
    """The strategy, for batches of eight samples."""
    return strategies.load(name)(task, ranks, SAMPLES, options)


def batch(task: BoundTask, strategy: Strategy) -> Batch:
    """This rank's slice of eight samples of the training set."""
    return batches.chunks(task.example(SAMPLES), strategy.replica.count)[strategy.replica.index]
