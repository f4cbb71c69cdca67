"""Wrong: goes on from a checkpoint without the optimizer's state."""

from pathlib import Path

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class ResumeWithoutMomentum(ByHand):
    """Wrong: goes on from a checkpoint without the optimizer's state."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.optimizer.state.clear()
