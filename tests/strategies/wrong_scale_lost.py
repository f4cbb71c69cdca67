"""Wrong: a checkpoint lacks the state of fp16's loss scale."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class ScaleLost(ByHand):
    """Wrong: a checkpoint lacks the state of fp16's loss scale."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.forward(inputs), targets)
        self.backward(loss)
        self.exchange()
        self.update()
        return loss.detach()

    def _scaler_state(self) -> dict[str, torch.Tensor]:
        return {}
