"""Does a step that was captured as a CUDA graph, and is replayed, train as one that is not?

Its plain training is that of the trial in the run's own precision. Samples that reach the loss are noted by the other
trials: a replay asks no Python.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from relay.equivalence.course import Course
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import Trial
from relay.process.ranks import Ranks
from relay.spec.run import Training
from relay.strategies._captured import Captured
from relay.task.batches import Batch
from relay.task.bound import BoundTask

REPLAYED = "its steps captured as a CUDA graph and replayed (`cuda_graph: false` trains without)"


@dataclass
class Unseen(TrialTask):
    """The task of a trial, whose loss notes nothing: reading the samples' ids would wait for the GPU."""

    def loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """The task's loss."""
        return BoundTask.loss(self, outputs, batch.data)


def of(trial: Trial) -> Trial:
    """The trial of the replayed steps, from that in the run's own precision."""
    return replace(trial, name="replayed", what=f"{trial.what}, {REPLAYED}")


def train(run: Training, trial: Trial, data: TrialData, ranks: Ranks) -> tuple[Course, str]:
    """Train as a run does whose steps are captured; and why none was replayed, '' where some were. Collective."""
    course = Course(run, data, ranks, data.of_kind(Unseen, trial))
    strategy = course.build()
    captured = Captured(strategy, lambda batch: batch)
    if not captured.why and course.task.stilled.draws:
        captured.why = "the gate's own draws of random numbers are not"
    if captured.why:
        return course, captured.why
    ranks.barrier()
    strategy.set_learning_rate(course.task.learning_rate(0))
    given = data.batches(course.task, trial.steps, strategy.replica.index, strategy.replica.count)
    with course.task.computing(), closing(captured.train_steps(given)) as losses:
        for step, loss in enumerate(losses, 1):
            course.losses.append(loss)
            strategy.set_learning_rate(course.task.learning_rate(step))
    told = captured.why or ("" if captured.replayed else f"{trial.steps} steps are too few")
    return course, told
