"""Wrong: computes float32 layers in bfloat16 in silence (autocast leaves float64 alone)."""

from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class Autocast(ByHand):
    """Wrong: computes float32 layers in bfloat16 in silence (autocast leaves float64 alone)."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, batch: Batch) -> Any:
        with torch.autocast(self.ranks.device.type, dtype=torch.bfloat16):
            return batches.cast(super().forward(batch), self.task.dtype)
