"""Trainings that no division of a batch leaves the same: what equality cannot mean is said, not guessed."""

from __future__ import annotations

import math

from relay.equivalence.trial_task import Identified, TrialData
from relay.equivalence.trials import Trial
from relay.task import batches, finite
from relay.task.mean_loss import LIMITS, Dependent, NotFinite, check_gradients, mean_over_samples
from relay.task.places import mistake

TRIAL = Trial(name="algorithm", precision="fp64", steps=1)


def unprovable(data: TrialData) -> str | None:
    """Why strategies cannot be compared with one process, in a sentence; None where they can.

    Raises UserError where the loss of the first batch is not finite: that proves nothing about it.
    """
    if reason := data.run.task.card.unrepeatable:
        return reason
    task = data.task(TRIAL)
    model = task.model()
    if reason := task.stilled.unrepeatable:
        return reason
    batch = Identified(data.first, data.indices(0)[: batches.count(data.first)])
    try:
        with task.computing():
            figure = mean_over_samples(task, model, batch)
            if figure <= LIMITS[task.dtype]:
                return check_gradients(task, model, batch)
    except Dependent as error:
        return str(error)
    except NotFinite as error:
        why = finite.reason(batch.data, batch.ids, task.split("train")) or "; allowed: a finite number"
        raise mistake(type(task.own), "loss", f"{error}{why}") from None
    what = f"a batch is {figure:.1e} away from the weighted mean of its parts' losses"
    if figure == math.inf:
        what = "a part of a batch is not finite, that of the whole batch is"
    return f"the loss is no mean over samples: that of {what}, so that a divided batch is another training"
