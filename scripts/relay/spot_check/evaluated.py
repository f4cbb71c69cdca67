"""The run's last evaluation, made again by one plain process from the state that the run saved after it."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from relay.equivalence.plain import Plain
from relay.process import machine
from relay.spec.setting import TF32
from relay.spot_check.loop import Loop
from relay.spot_check.stretch import Figure, unlike
from relay.strategies.base import Replica
from relay.task.data import Mapped
from relay.task.lowered import computed_in
from relay.training import evaluation
from relay.training.summary import counted_of

# How far the test loss may be from the plain process's, by precision; relative where it is greater than 1. It is a
# mean over many samples: sums in another order change it by 1e-7 or less, in bf16 by 1e-4.
TEST_LOSS_LIMITS = {"fp64": 1e-9, "fp32": 1e-6, **dict.fromkeys(TF32, 5e-4), "bf16": 2e-3, "fp16": 5e-4}
# The same for metrics, such as the part of the samples that are classified correctly: rounding decides where two
# classes are as likely. Two samples may be in any case.
METRIC_LIMITS = {"fp64": 1e-4, "fp32": 2e-3, **dict.fromkeys(TF32, 1e-2), "bf16": 2e-2, "fp16": 1e-2}


# The mean loss on the test set, and the task's metrics by name.
Evaluated = tuple[float, Mapping[str, float]]


def figures(recorded: Evaluated, loop: Loop, whole: Plain) -> list[Figure]:
    """How far an evaluation that the run recorded is from that of `whole`: its last state, with replicas' statistics.

    The plain process evaluates in the batches and slices of the run: with each replica's own statistics and, where they
    are others, with the first one's for all slices. The nearer one counts.
    """
    machine.set_precision(loop.task.precision)
    feeder = Mapped(loop.task.split("test"), loop.ranks.device)
    own_of = whole.statistics
    ways = [own_of]
    if any(unlike(own_of[0], own) for own in own_of):
        ways.append(own_of[:1] * len(own_of))
    rounded = computed_in(loop.task, loop.ranks.device, evaluated=True)  # a model may turn to fewer bits for it
    limit = max(METRIC_LIMITS[rounded], 2 / len(feeder.split))
    (its_loss, its_metrics), tried = recorded, []
    for statistics in ways:
        plain, size = replace(whole, statistics=statistics), loop.run.batch.global_batch_size
        totals = []
        for each in range(len(own_of)):
            # One replica of the plain training, as an evaluation sees a strategy.
            replica: Any = SimpleNamespace(task=loop.task, ranks=loop.ranks, replica=Replica(each, len(own_of)))
            replica.predict = partial(plain.predict, replica=each)
            totals.append(evaluation.Evaluation(feeder, replica, size).totals())
        loss, metrics = evaluation.averaged(loop.task, totals)
        figures_of_way = [Figure("test loss", _off(its_loss, loss), TEST_LOSS_LIMITS[rounded], 0.0)]
        for name in its_metrics.keys() & metrics.keys():
            figures_of_way.append(Figure(f"test {name}", _off(its_metrics[name], metrics[name]), limit, 0.0))
        tried.append(figures_of_way)
    return min(tried, key=lambda of_way: max(figure.figure / figure.limit for figure in of_way))


def _off(recorded: float, plain: float) -> float:
    """The relative difference; none between two that are NaN, as F1 of a class without samples, or infinite alike."""
    if recorded == plain or (math.isnan(recorded) and math.isnan(plain)):
        return 0.0
    return abs(recorded - plain) / max(1.0, abs(plain))


def last_recorded(work: Path, step: int) -> Evaluated | None:
    """The evaluation after a step that the run has recorded last."""
    evaluations = [each for attempt in counted_of(work) for each in attempt.evaluations if each["step"] == step]
    return (evaluations[-1]["test_loss"], evaluations[-1]["test_metrics"]) if evaluations else None
