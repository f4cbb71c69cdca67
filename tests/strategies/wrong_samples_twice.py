"""Wrong: the slices overlap: some samples are seen twice, others never, as many as there should be."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class SamplesTwice(ByHand):
    """Wrong: the slices overlap: some samples are seen twice, others never, as many as there should be."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        samples = batches.count(batch)
        start = self.ranks.rank * (samples - 2)
        return super().train_step(batches.taken(self.gathered(batch), slice(start, start + samples)))
