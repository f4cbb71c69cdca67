"""Wrong: computes the layers without those that drop units."""

from typing import Any

from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class DropoutPassedBy(ByHand):
    """Wrong: computes the layers without those that drop units."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, batch: Batch) -> Any:
        (outputs,), _ = self.task.arguments(batch)
        for layer in self.model.children():
            if not isinstance(layer, (nn.Dropout, nn.Dropout2d)):
                outputs = layer(outputs)
        return outputs
