"""Wrong: evaluates float32 networks in bfloat16."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class EvaluationLowered(ByHand):
    """Wrong: evaluates float32 networks in bfloat16 (autocast leaves float64 alone)."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            return super().predict(inputs).to(inputs.dtype)
