"""What the tests of sharded strategies train: short tasks, strategies at their start, made-up batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing

from relay import strategies
from relay.datasets import catalogue
from relay.process.ranks import Ranks
from relay.spec import tasks
from relay.strategies.base import Strategy
from relay.task.task import Task

FP64 = {"precision": "fp64"}
GPT, MOE = {"task": "gpt-tiny"}, {"task": "gpt-moe-tiny"}


def of_task(name: str, precision: str = "fp32") -> Task:
    """The task at the start of a training of ten steps."""
    spec = tasks.task(name)
    dataset = catalogue.dataset(spec.dataset)
    return Task(spec, dataset.classes, 5, precision, steps_per_epoch=10, total_steps=10, kind=dataset.kind)


def built(name: str, ranks: Ranks, task: Task, **options: Any) -> Strategy:
    """The strategy, for batches of eight samples."""
    return strategies.load(name)(task, ranks, 8, options)


def batch(task: Task, strategy: Strategy, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's slice of a made-up batch."""
    generator, shape = torch.Generator().manual_seed(seed), (8, *task.spec.input_shape)
    text = task.kind == "text"
    inputs = torch.randint(256, shape, generator=generator) if text else torch.randn(shape, generator=generator)
    targets = torch.randint(task.classes or 1, shape if text else (8,), generator=generator)
    replica = strategy.replica
    return inputs.chunk(replica.count)[replica.index], targets.chunk(replica.count)[replica.index]
