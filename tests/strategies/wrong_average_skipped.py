"""Wrong: averages a copy of the gradients, and trains with its own."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class AverageSkipped(ByHand):
    """Wrong: averages a copy of the gradients, and trains with its own."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def exchange(self) -> None:
        for gradient in self.gradients():
            self.average(gradient.clone())
