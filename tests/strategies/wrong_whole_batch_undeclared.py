"""Wrong: all ranks compute the whole batch, and it declares to divide nothing."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Replica, Requirements


class WholeBatchUndeclared(ByHand):
    """Wrong: all ranks compute the whole batch, and it declares to divide nothing."""

    requirements = Requirements(least_devices=2)

    def build(self) -> None:
        self.build_whole()
        self.replica = Replica(0, 1, reports=self.ranks.rank == 0)
