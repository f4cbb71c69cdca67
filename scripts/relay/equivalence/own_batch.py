"""The few steps of a gate at the batch size of the runs that it stands for.

They show what depends on the batch size: how it is divided, its mean, its learning rate, and code that only a large
batch reaches. Their plain training is rank 0's, so that all batch sizes share one reference.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from relay import strategies
from relay.equivalence import reference
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import FROM_REFERENCE, Trial
from relay.equivalence.trials import trials as all_trials
from relay.process.ranks import Ranks
from relay.spec.run import Gate, OwnBatch, Training, changed

STEPS = 2  # the second one has momentum, and another learning rate where a schedule moves it
# Clipping of a scaled loss, and rounding of an optimizer's state, do not depend on the batch.
LEFT_OUT = ("scaled", "own optimizer")
# Of an update of one or two steps. A strategy that averages parameters rounds them in each step: 8e-5 of it in LeNet,
# which 20 steps make small. Products in bf16 give 2e-3 or more; what is sent in fewer bits shows at the small batch.
SMOOTH: dict[str, Any] = {"limit": 5e-4, "least_limit": None, "rounding_margin": 10, "most_limit": 1e-3}


def at(run: Gate, own: OwnBatch) -> Training:
    """The gate as it trains at one of its runs' own batches."""
    task = replace(run.task, learning_rate=own.learning_rate)
    per_epoch = run.dataset.train_count // own.global_batch_size
    steps = min(STEPS, run.length.total_steps)
    length = {"epochs": steps / per_epoch, "steps_per_epoch": per_epoch, "total_steps": steps}
    return changed(run, task=task, global_batch_size=own.global_batch_size, **length)


def trials(run: Training) -> list[Trial]:
    """The trials at an own batch. `run` is what `at` returns."""
    chosen = [trial for trial in all_trials(run) if trial.name not in LEFT_OUT]
    return [replace(trial, **SMOOTH) if trial.name == "smooth twin" else trial for trial in chosen]


def divisions(run: Training) -> list[int]:
    """In which divisions of a slice rounding is measured: in halves, and as the strategy works through a slice."""
    worked_through = strategies.load(run.strategy.name).requirements.whole_batches
    pieces = math.lcm(*(run.strategy.options.get(name, 1) for name in worked_through))
    return sorted({2, pieces} - {1})


def plain(run: Training, trial: Trial, data: TrialData, ranks: Ranks) -> dict[str, Any]:
    """Train the trial in rank 0's process alone, without a strategy; what `reference.train` returns. Collective.

    The other ranks only learn how many steps are compared, and at which learning rate.
    The batch is computed in as many parts as the strategy has devices for it, so that it needs no more memory at once.
    """
    parts = run.shape.devices if "samples" in run.strategy.divides else 1
    trained = reference.train(trial, data, parts, divisions(run)) if ranks.rank == 0 else {}
    shared = (*FROM_REFERENCE, "ended", "footprint")
    decided: dict[str, Any] = ranks.gather({name: value for name, value in trained.items() if name in shared})[0]
    return decided | trained
