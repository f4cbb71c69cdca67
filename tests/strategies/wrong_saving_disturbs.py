"""Wrong: saving takes the optimizer's state away, and the training goes on without it."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class SavingDisturbs(ByHand):
    """Wrong: saving takes the optimizer's state away, and the training goes on without it."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def save(self, directory: Path) -> Future[Any]:
        written = super().save(directory)
        self.optimizer.state.clear()
        return written
