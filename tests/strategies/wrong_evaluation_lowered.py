"""Wrong: evaluates float32 networks in bfloat16."""

from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class EvaluationLowered(ByHand):
    """Wrong: evaluates float32 networks in bfloat16 (autocast leaves float64 alone)."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def predict(self, batch: Batch) -> Any:
        with torch.autocast(self.ranks.device.type, dtype=torch.bfloat16):
            return batches.cast(super().predict(batch), self.task.dtype)
