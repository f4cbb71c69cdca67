"""Wrong: the replicas average BatchNorm's running statistics after each step."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class NormAveraged(ByHand):
    """Wrong: the replicas average BatchNorm's running statistics after each step."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def exchange(self) -> None:
        super().exchange()
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                self.average(buffer)
