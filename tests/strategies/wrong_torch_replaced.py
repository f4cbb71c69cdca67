"""Wrong: it replaces torch's batch_norm by one with another momentum, for its whole process."""

from typing import Any

import torch
import torch.nn.functional as F

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements

normalise = F.batch_norm


def replaced(inputs: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
    """Torch's own, whose statistics move twice as fast."""
    *others, training, momentum, epsilon = given
    return normalise(inputs, *others, training, min(2 * momentum, 1.0), epsilon, **named)


class TorchReplaced(ByHand):
    """Wrong: it replaces torch's batch_norm by one with another momentum, for its whole process."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        F.batch_norm = replaced
        super().build()
