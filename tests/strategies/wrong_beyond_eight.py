"""Wrong: a rank with more than eight samples computes the first eight only."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches

MOST = 8


class BeyondEight(ByHand):
    """Wrong: a rank with more than eight samples computes the first eight only."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        return super().train_step(batches.taken(batch, slice(MOST)))
