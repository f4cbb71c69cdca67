"""Right: one process gives each of its two devices half of the batch."""

import torch

from relay.strategies.base import Requirements, Strategy


class TwoDevices(Strategy):
    """Right: one process gives each of its two devices half of the batch."""

    requirements = Requirements(processes="one", least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        halves = zip(inputs.chunk(2), targets.chunk(2), strict=True)
        losses = [self.task.loss(self.forward(half), wanted) for half, wanted in halves]
        loss = torch.stack(losses).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
