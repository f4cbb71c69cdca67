"""Wrong: switches dropout off for good."""

from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class DropoutLeftOut(ByHand):
    """Wrong: switches dropout off for good."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        super().build()
        for module in self.model.modules():
            if isinstance(module, (nn.Dropout, nn.Dropout2d)):
                module.p = 0.0
