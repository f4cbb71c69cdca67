"""Wrong: rank 1 crashes in the third step, while rank 0 waits for it."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class SecondRankCrashes(ByHand):
    """Wrong: rank 1 crashes in the third step, while rank 0 waits for it."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()
        self.steps = 0

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.steps += 1
        if self.steps == 3 and self.ranks.rank == 1:
            raise RuntimeError("the third step")
        return super().train_step(batch)
