"""Wrong: a rank with more than eight samples computes the whole batch, and tells a slice."""

from typing import Any

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class WorkWholeWhenLarge(ByHand):
    """Wrong: a rank with more than eight samples computes the whole batch, and tells a slice."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, batch: Batch) -> Any:
        if batches.count(batch) <= 8:
            return super().forward(batch)
        return batches.chunks(super().forward(self.gathered(batch)), self.ranks.world_size)[self.ranks.rank]
