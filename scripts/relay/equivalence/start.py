"""Builds a strategy for a trial, as a run's training builds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.run import Training
from relay.strategies.base import Strategy
from relay.task.task import Task


def start(
    run: Training, task: Task, ranks: Ranks, *, lossy: bool = False, measured: Mapping[str, Any] | None = None
) -> Strategy:
    """The run's strategy on that task; with exact options in the place of lossy ones, unless `lossy`. Collective."""
    kind = strategies.load(run.strategy.name)
    exact = {} if lossy else {name: kind.requirements.options[name] for name in run.strategy.lossy}
    return kind(task, ranks, run.batch.global_batch_size, {**run.strategy.options, **exact}, measured)
