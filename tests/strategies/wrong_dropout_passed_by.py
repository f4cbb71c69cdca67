"""Wrong: computes the layers without those that drop units."""

import torch
from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class DropoutPassedBy(ByHand):
    """Wrong: computes the layers without those that drop units."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.model.children():
            if not isinstance(layer, (nn.Dropout, nn.Dropout2d)):
                inputs = layer(inputs)
        return inputs
