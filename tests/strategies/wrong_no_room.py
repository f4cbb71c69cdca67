"""Needs more memory than there is for a global batch of more than 16."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class NoRoom(ByHand):
    """Right at small batches; there is no memory for larger ones."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        if self.global_batch_size > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB")
        return super().train_step(batch)
