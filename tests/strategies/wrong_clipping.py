"""Wrong: clips the gradients to a norm of 1 in silence."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Clipping(ByHand):
    """Wrong: clips the gradients to a norm of 1, or as the option says, in silence."""

    requirements = Requirements(least_devices=2, divides=("samples",), options={"max_norm": 1.0})

    def build(self, max_norm: float) -> None:
        self.build_whole()
        self.max_norm = max_norm

    def exchange(self) -> None:
        super().exchange()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
