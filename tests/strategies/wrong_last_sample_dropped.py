"""Wrong: drops the last sample of each slice."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class LastSampleDropped(ByHand):
    """Wrong: drops the last sample of each slice."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        return super().train_step(batches.taken(batch, slice(-1)))
