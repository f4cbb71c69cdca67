"""Wrong: stops before the last batch."""

from collections.abc import Callable, Iterator

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class StopsEarly(ByHand):
    """Wrong: stops before the last batch."""

    requirements = Requirements(processes="one", devices=("cpu",))

    def train(self, batches: Iterator[Batch], after_step: Callable[[torch.Tensor], bool]) -> None:
        every = list(batches)
        super().train(iter(every[:-1]), after_step)
