"""Right: gradients of several parts of the slice are summed before they are averaged over the ranks."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Accumulation(ByHand):
    """Right: gradients of several parts of the slice are summed before they are averaged over the ranks."""

    requirements = Requirements(least_devices=2, divides=("samples",), options={"pieces": 2}, whole_batches=("pieces",))

    def build(self, pieces: int) -> None:
        self.build_whole()
        self.pieces = pieces

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        losses = []
        for some, wanted in zip(inputs.chunk(self.pieces), targets.chunk(self.pieces), strict=True):
            loss = self.task.loss(self.forward(some), wanted) / self.pieces
            loss.backward()
            losses.append(loss.detach())
        self.exchange()
        self.optimizer.step()
        return torch.stack(losses).sum()
