"""Wrong: BatchNorm takes its statistics of halves of the slice, which nothing declares."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class NormParts(ByHand):
    """Wrong: BatchNorm takes its statistics of halves of the slice, which nothing declares."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([super(NormParts, self).forward(half) for half in inputs.chunk(2)])
