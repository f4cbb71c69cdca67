"""Wrong: a rank with more than eight samples computes the whole batch, and tells a slice."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class WorkWholeWhenLarge(ByHand):
    """Wrong: a rank with more than eight samples computes the whole batch, and tells a slice."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) <= 8:
            return super().forward(inputs)
        return super().forward(self.gathered(inputs)).chunk(self.ranks.world_size)[self.ranks.rank]
