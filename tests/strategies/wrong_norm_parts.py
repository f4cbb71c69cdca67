"""Wrong: BatchNorm takes its statistics of halves of the slice, which nothing declares."""

from typing import Any

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class NormParts(ByHand):
    """Wrong: BatchNorm takes its statistics of halves of the slice, which nothing declares."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, batch: Batch) -> Any:
        return batches.joined([super(NormParts, self).forward(half) for half in batches.chunks(batch, 2)])
