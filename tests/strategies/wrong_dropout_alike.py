"""Wrong: all replicas drop the same units, as where all have the same seed."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class DropoutAlike(ByHand):
    """Wrong: all replicas drop the same units, as where all have the same seed."""

    requirements = Requirements(least_devices=2, divides=("samples",))
    steps = 0

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.steps += 1
        torch.manual_seed(self.steps)
        return super().train_step(batch)
