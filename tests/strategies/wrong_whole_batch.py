"""Wrong: all ranks compute the whole batch."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Replica, Requirements


class WholeBatch(ByHand):
    """Wrong: all ranks compute the whole batch."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()
        self.replica = Replica(0, 1, reports=self.ranks.rank == 0)
