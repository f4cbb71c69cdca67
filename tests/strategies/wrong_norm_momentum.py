"""Wrong: BatchNorm's running statistics move with another momentum."""

from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class NormMomentum(ByHand):
    """Wrong: BatchNorm's running statistics move with another momentum."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        super().build()
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.01
