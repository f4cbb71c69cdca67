"""Wrong: the learning rate is 0.1 % too large."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class LearningRate(ByHand):
    """Wrong: the learning rate is 0.1 % too large."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def set_learning_rate(self, learning_rate: float) -> None:
        super().set_learning_rate(1.001 * learning_rate)
