"""Wrong: every rank computes the whole batch forward, and only its own slice backward."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class WorkForward(ByHand):
    """Wrong: every rank computes the whole batch forward, and only its own slice backward."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        parts = batches.chunks(self.gathered(batch), self.ranks.world_size)
        del parts[self.ranks.rank]
        with torch.no_grad():
            for part in parts:
                self.forward(part)
        return super().train_step(batch)
