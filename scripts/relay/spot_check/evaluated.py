"""The run's last evaluation, made again by one plain process from the state that the run saved after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relay.equivalence.plain import Plain, Statistics
from relay.process import machine
from relay.process.ranks import Ranks
from relay.spec.setting import TF32
from relay.spot_check import batch_norm
from relay.spot_check.loop import Loop
from relay.spot_check.stretch import Figure
from relay.strategies.base import Replica
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.data import Mapped
from relay.training import evaluation
from relay.training.summary import counted_of

# How far the test loss may be from the plain process's, by precision; relative where it is greater than 1. It is a
# mean over many samples: sums in another order change it by 1e-7 or less, in bf16 by 1e-4.
TEST_LOSS_LIMITS = {"fp64": 1e-9, "fp32": 1e-6, **dict.fromkeys(TF32, 5e-4), "bf16": 2e-3, "fp16": 5e-4}
# The same for metrics, such as the part of the samples that are classified correctly: rounding decides where two
# classes are as likely. Two samples may be in any case.
METRIC_LIMITS = {"fp64": 1e-4, "fp32": 2e-3, **dict.fromkeys(TF32, 1e-2), "bf16": 2e-2, "fp16": 1e-2}


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation finds: the mean loss on the test set, and the task's metrics by name."""

    loss: float
    metrics: Mapping[str, float]


@dataclass
class _Replica:
    """One replica of a plain training, as an evaluation sees a strategy."""

    plain: Plain
    task: BoundTask
    replica: Replica
    ranks: Ranks

    def predict(self, batch: Batch) -> Any:
        """Outputs by the replica's statistics."""
        return self.plain.predict(batch, self.replica.index)


class Evaluation:
    """Evaluates the state of a run after one step, in the batches and slices in which the run evaluates."""

    def __init__(self, loop: Loop, step: int) -> None:
        self.loop, self.step = loop, step
        self.feeder = Mapped(loop.task.split("test"), loop.ranks.device)

    def figures(self, recorded: Evaluated, whole: Plain) -> list[Figure]:
        """How far an evaluation that the run recorded is from that of a model, which was read from this state."""
        tried = [self._compared(recorded, each) for each in self._of(whole)]
        return min(tried, key=lambda figures: max(figure.figure / figure.limit for figure in figures))

    def _compared(self, recorded: Evaluated, plain: Evaluated) -> list[Figure]:
        precision = self.loop.run.computation.precision
        figures = [Figure("test loss", _off(recorded.loss, plain.loss), TEST_LOSS_LIMITS[precision], 0.0)]
        limit = max(METRIC_LIMITS[precision], 2 / len(self.feeder.split))
        for name in recorded.metrics.keys() & plain.metrics.keys():
            off = _off(recorded.metrics[name], plain.metrics[name])
            figures.append(Figure(f"test {name}", off, limit, 0.0))
        return figures

    def _of(self, whole: Plain) -> Iterator[Evaluated]:
        """With each replica's own statistics and, where they are others, with the first one's for all slices."""
        machine.set_precision(self.loop.task.precision)
        own_of = self.loop.statistics(self.step, whole)
        yield self._measured(whole, own_of)
        if any(batch_norm.unlike(own_of[0], own) for own in own_of):
            yield self._measured(whole, own_of[:1] * len(own_of))

    def _measured(self, whole: Plain, own_of: list[Statistics]) -> Evaluated:
        """The whole test set."""
        plain = replace(whole, statistics=own_of)
        every = (Replica(each, len(own_of)) for each in range(len(own_of)))
        replicas = (_Replica(plain, self.loop.task, replica, self.loop.ranks) for replica in every)
        size = self.loop.run.batch.global_batch_size
        told = [evaluation.Evaluation(self.feeder, each, size).totals() for each in replicas]
        return Evaluated(*evaluation.averaged(self.loop.task, told))


def _off(recorded: float, plain: float) -> float:
    return abs(recorded - plain) / max(1.0, abs(plain))


def last_recorded(work: Path, step: int) -> Evaluated | None:
    """The evaluation after a step that the run has recorded last."""
    evaluations = [each for attempt in counted_of(work) for each in attempt.evaluations if each["step"] == step]
    return Evaluated(evaluations[-1]["test_loss"], evaluations[-1]["test_metrics"]) if evaluations else None
