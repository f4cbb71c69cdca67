"""Wrong: drops the last sample of each slice."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class LastSampleDropped(ByHand):
    """Wrong: drops the last sample of each slice."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().train_step(inputs[:-1], targets[:-1])
