"""Wrong: stops before the last batch."""

from collections.abc import Generator, Iterator

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class StopsEarly(ByHand):
    """Wrong: stops before the last batch."""

    requirements = Requirements(processes="one", devices=("cpu",))

    def train_steps(self, batches: Iterator[Batch]) -> Generator[torch.Tensor, None, None]:
        yield from super().train_steps(iter(list(batches)[:-1]))
