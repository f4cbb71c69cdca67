"""Wrong: the gradient of a single bias is 1 % too large."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class SingleBias(ByHand):
    """Wrong: the gradient of a single bias is 1 % too large."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def exchange(self) -> None:
        super().exchange()
        self.gradients()[-1][0] *= 1.01
