"""Wrong: each rank clips the gradients of its own slice, before they are averaged."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class ClipsItsSlice(ByHand):
    """Wrong: the mean of clipped gradients is not the mean, clipped."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def exchange(self) -> None:
        self.task.clip(self.optimizer)
        super().exchange()
