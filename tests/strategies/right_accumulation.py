"""Right: gradients of several parts of the slice are summed before they are averaged over the ranks."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class Accumulation(ByHand):
    """Right: gradients of several parts of the slice are summed before they are averaged over the ranks."""

    requirements = Requirements(least_devices=2, divides=("samples",), options={"pieces": 2}, whole_batches=("pieces",))

    def build(self, pieces: int) -> None:
        self.build_whole()
        self.pieces = pieces

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        losses = []
        for part in batches.chunks(batch, self.pieces):
            loss = self.task.loss(self.forward(part), part) / self.pieces
            loss.backward()
            losses.append(loss.detach())
        self.exchange()
        self.optimizer.step()
        return torch.stack(losses).sum()
