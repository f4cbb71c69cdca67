"""Wrong: a replica drops in a step what the next one has dropped in the step before."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class DropoutOfTheNext(ByHand):
    """Wrong: a replica drops in a step what the next one has dropped in the step before."""

    requirements = Requirements(least_devices=2, divides=("samples",))
    steps = 0

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.steps += 1
        torch.manual_seed(self.steps + self.ranks.rank)
        return super().train_step(batch)
