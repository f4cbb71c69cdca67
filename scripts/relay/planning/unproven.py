"""Settings whose equivalence cannot be proven: one process computes something else than several do."""

from __future__ import annotations

from relay.planning import batches
from relay.spec.card import ROUNDING
from relay.spec.requirements import Requirements
from relay.spec.run import Setting


def because(setting: Setting, needs: Requirements) -> str:
    """Why nothing can be proven of a setting; '' where its gate can tell, and where nobody has looked at the loss.

    The random numbers have to be torch's, for no proof can repeat others. And the loss of a batch has to be the mean of
    its parts' losses, or dividing the batch makes it another training.
    """
    if reason := setting.task.card.unrepeatable:
        return reason
    difference, parts = setting.task.card.mean_difference, batches.unit(setting, needs)
    if parts == 1 or difference is None or difference <= ROUNDING:
        return ""
    return (
        f"the loss of {setting.task.name} is no mean over samples: {setting.strategy.name}, which computes it of "
        f"{parts} parts of a batch, trains otherwise than one process"
    )
