"""Right: one process gives each of its two devices half of the batch."""

import torch

from relay.strategies.base import Batch, Requirements, Strategy
from relay.task import batches


class TwoDevices(Strategy):
    """Right: one process gives each of its two devices half of the batch."""

    requirements = Requirements(processes="one", least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        losses = [self.task.loss(self.forward(half), half) for half in batches.chunks(batch, 2)]
        loss = torch.stack(losses).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
