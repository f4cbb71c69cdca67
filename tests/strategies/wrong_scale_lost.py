"""Wrong: a checkpoint lacks the state of fp16's loss scale."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class ScaleLost(ByHand):
    """Wrong: a checkpoint lacks the state of fp16's loss scale."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.forward(batch), batch)
        self.backward(loss)
        self.exchange()
        self.update()
        return loss.detach()

    def _scaler_state(self) -> dict[str, torch.Tensor]:
        return {}
