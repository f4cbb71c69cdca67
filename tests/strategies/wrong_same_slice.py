"""Wrong: every rank trains on the first slice of the batch."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Replica, Requirements


class SameSlice(ByHand):
    """Wrong: every rank trains on the first slice of the batch."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()
        self.replica = Replica(0, self.ranks.world_size)
