"""Where a training that failed a comparison parts from the plain one: the first step, and the first parameter.

The trial is trained once more, with a plain training beside it. That costs nothing where all is well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing, suppress

from relay.equivalence.course import Course, EndedEarlyError
from relay.equivalence.figures import difference, distance, share
from relay.equivalence.plain import Plain, State, Tensors
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import Trial
from relay.equivalence.verdict import Verdict
from relay.process.ranks import Ranks
from relay.spec.run import Training


def find(verdict: Verdict, run: Training, trials: Sequence[Trial], data: TrialData, ranks: Ranks) -> None:
    """Say in the verdict where the first of these trials that failed parts from the plain training. Collective."""
    failed = [part.trial for part in verdict.parts if not part.passed and part.compared in ("losses", "parameters")]
    names = ranks.gather(failed)[0]  # only rank 0's verdict is complete
    trial = next((trial for trial in trials if trial.name in names), None)
    if trial is not None:
        verdict.where = parting(run, trial, data, ranks) or verdict.where


def parting(run: Training, trial: Trial, data: TrialData, ranks: Ranks) -> str | None:
    """The first step and tensor that differ, in a phrase; None where no step shows it again. Collective."""
    course = Course(run, data, ranks, data.task(trial, scale=trial.scale), lossy=trial.lossy)
    course.build()
    unscaled = data.task(trial)
    plain = Plain.of(unscaled, data.device) if ranks.rank == 0 else None
    reporting = ranks.gather(course.seen.replica.reports)
    initial = _on_cpu(plain) if plain else {}
    with closing(course.steps(0, trial.steps)) as steps, suppress(EndedEarlyError):
        for step in steps:
            whole = course.strategy.whole_model()
            losses, differing = ranks.collect(course.loss(step)), None
            if plain is not None:
                expected = plain.step([[data.batch(unscaled, step)]], unscaled.learning_rate(step))
                mine = [loss for loss, reports in zip(losses, reporting, strict=True) if reports]
                plain_tensors = _on_cpu(plain)
                differing = _first(trial, whole, plain_tensors, initial) or _of_loss(trial, mine, float(expected))
            differing = ranks.gather(differing)[0]
            if differing:
                return f"first differs at step {step + 1} in {differing}"
    return None


def _on_cpu(plain: Plain) -> Tensors:
    return {name: tensor.cpu() for name, tensor in State.of(plain).model.items()}


def _first(trial: Trial, whole: Tensors, expected: Tensors, initial: Tensors) -> str | None:
    """The first tensor, in the network's order, that differs by more than the trial allows."""
    if not expected.keys() <= whole.keys():
        return None  # a problem says so already
    figures = {name: difference(whole[name], tensor) for name, tensor in expected.items()}
    if trial.relative:
        # Of all that training moved, each tensor's part of the difference that is allowed for all together.
        moved = distance([(tensor, initial[name]) for name, tensor in expected.items()]) / math.sqrt(len(expected))
        figures = {name: share(distance([(whole[name], tensor)]), moved) for name, tensor in expected.items()}
    limit = trial.limit_of("parameters") or trial.limit
    return next((f"{name} ({figure:.1e})" for name, figure in figures.items() if not figure <= limit), None)


def _of_loss(trial: Trial, mine: Sequence[float], expected: float) -> str | None:
    """The loss, where it differs and no tensor does."""
    if trial.relative or not mine:
        return None
    figure = abs(sum(mine) / len(mine) - expected)
    return None if figure <= (trial.limit_of("losses") or trial.limit) else f"the loss ({figure:.1e})"
