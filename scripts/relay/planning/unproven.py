"""Tasks of which nothing can be proven: one process computes something else than several do."""

from __future__ import annotations

from relay.spec.card import ROUNDING
from relay.spec.tasks import TaskSpec


def because(task: TaskSpec) -> str:
    """Why nothing can be proven of a task; '' where its gates can tell, and where nobody has looked at the loss.

    The random numbers have to be torch's, for no proof can repeat others. And the loss of a batch has to be the mean of
    its parts' losses, or dividing the batch makes it another training. That holds of strategies that divide no batch
    as well: all gates of a task share its reference, which finds the same and then trains nothing.
    """
    if reason := task.card.unrepeatable:
        return reason
    difference = task.card.mean_difference
    if difference is None or difference <= ROUNDING:
        return ""
    return f"the loss of {task.name} is no mean over samples, so that a divided batch is another training"
