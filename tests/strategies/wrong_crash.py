"""Wrong: crashes while it is built."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Crash(ByHand):
    """Wrong: crashes while it is built."""

    requirements = Requirements(processes="one", devices=("cpu",))

    def build(self) -> None:
        raise RuntimeError("no such\n  wrapper")
