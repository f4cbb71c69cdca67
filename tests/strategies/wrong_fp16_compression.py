"""Wrong: sends float32 gradients as float16 in silence."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class FP16Compression(ByHand):
    """Wrong: sends float32 gradients as float16 in silence."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def average(self, tensor: torch.Tensor) -> None:
        sent = tensor.to(torch.float16) if tensor.dtype == torch.float32 else tensor.clone()
        super().average(sent)
        tensor.copy_(sent)
