"""Wrong: drops the same units in every step."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class DropoutRepeats(ByHand):
    """Wrong: drops the same units in every step."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        torch.manual_seed(7 + self.ranks.rank)
        return super().train_step(batch)
