"""Wrong: never communicates; each rank trains alone on its slices."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Alone(ByHand):
    """Wrong: never communicates; each rank trains alone on its slices."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def exchange(self) -> None:
        pass
