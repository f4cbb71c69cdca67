"""Wrong: computes float32 layers in bfloat16 in silence (autocast leaves float64 alone)."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Autocast(ByHand):
    """Wrong: computes float32 layers in bfloat16 in silence (autocast leaves float64 alone)."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            return super().forward(inputs).to(inputs.dtype)
