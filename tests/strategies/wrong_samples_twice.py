"""Wrong: the slices overlap: some samples are seen twice, others never, as many as there should be."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class SamplesTwice(ByHand):
    """Wrong: the slices overlap: some samples are seen twice, others never, as many as there should be."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        start = self.ranks.rank * (len(inputs) - 2)
        mine = slice(start, start + len(inputs))
        return super().train_step(self.gathered(inputs)[mine], self.gathered(targets)[mine])
