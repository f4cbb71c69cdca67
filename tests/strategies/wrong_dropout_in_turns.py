"""Wrong: drops the same units in every second step."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class DropoutInTurns(ByHand):
    """Wrong: drops the same units in every second step."""

    requirements = Requirements(least_devices=2, divides=("samples",))
    steps = 0

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.steps += 1
        torch.manual_seed(7 * (self.steps % 2) + self.ranks.rank)
        return super().train_step(batch)
