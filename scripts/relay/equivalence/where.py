"""Where a training that failed a comparison parts from the plain one: the first step, and the first parameter.

The trial is trained once more, with a plain training beside it. That costs nothing where all is well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice

import torch

from relay.equivalence.figures import difference
from relay.equivalence.plain import Plain
from relay.equivalence.start import start
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import Trial
from relay.equivalence.verdict import Verdict
from relay.process.ranks import Ranks
from relay.spec.run import Training

Tensors = Mapping[str, torch.Tensor]


def find(verdict: Verdict, run: Training, trials: Sequence[Trial], data: TrialData, ranks: Ranks) -> None:
    """Say in the verdict where the first of these trials that failed parts from the plain training. Collective."""
    failed = [part.trial for part in verdict.parts if not part.passed and part.compared in ("losses", "parameters")]
    names = ranks.gather(failed)[0]  # only rank 0's verdict is complete
    trial = next((trial for trial in trials if trial.name in names), None)
    if trial is not None:
        verdict.where = parting(run, trial, data, ranks) or verdict.where


def parting(run: Training, trial: Trial, data: TrialData, ranks: Ranks) -> str | None:
    """The first step and tensor that differ, in a phrase; None where no step shows it again. Collective."""
    if run.computation.compile:
        torch.compiler.reset()
    task = TrialTask.in_trial(run, trial, scale=trial.scale)
    strategy = start(run, task, ranks, lossy=trial.lossy)
    unscaled = TrialTask.in_trial(run, trial, scale=1.0)
    plain = Plain.of(unscaled, data.device) if ranks.rank == 0 else None
    initial = {name: tensor.cpu().clone() for name, tensor in plain.model.state_dict().items()} if plain else {}
    replica = strategy.replica
    strategy.set_learning_rate(task.learning_rate(0))
    losses = strategy.train_steps(data.batches(task, trial.steps, replica.index, replica.count))
    for step, loss in enumerate(islice(losses, trial.steps)):
        whole = strategy.whole_model()
        told = ranks.collect(loss.double().item() / trial.scale if replica.reports else None)
        found = None
        if plain is not None:
            (batch,) = data.batches(unscaled, step + 1, 0, 1, step)
            expected = plain.step([[batch]], unscaled.learning_rate(step))
            known = {name: tensor.cpu() for name, tensor in plain.model.state_dict().items()}
            mine = [value for value in told if value is not None]
            found = _first(trial, whole, known, initial) or _of_loss(trial, mine, float(expected))
        found = ranks.gather(found)[0]
        if found:
            losses.close()
            return f"first differs at step {step + 1} in {found}"
        strategy.set_learning_rate(task.learning_rate(step + 1))
    return None


def _first(trial: Trial, whole: Tensors, known: Tensors, initial: Tensors) -> str | None:
    """The first tensor, in the network's order, that differs by more than the trial allows."""
    if not known.keys() <= whole.keys():
        return None  # a problem says so already
    figures = {name: difference(whole[name], tensor) for name, tensor in known.items()}
    if trial.relative:
        # Of all that training moved, each tensor's part of the difference that is allowed for all together.
        moved = math.hypot(*(float((tensor - initial[name]).norm()) for name, tensor in known.items()))
        parts = math.sqrt(len(known))
        figures = {n: parts * float((whole[n] - t).double().norm()) / moved for n, t in known.items()} if moved else {}
    limit = trial.limit_of("parameters") or trial.limit
    return next((f"{name} ({figure:.1e})" for name, figure in figures.items() if not figure <= limit), None)


def _of_loss(trial: Trial, mine: Sequence[float], expected: float) -> str | None:
    """The loss, where it differs and no tensor does."""
    if trial.relative or not mine:
        return None
    figure = abs(sum(mine) / len(mine) - expected)
    return None if figure <= (trial.limit_of("losses") or trial.limit) else f"the loss ({figure:.1e})"
