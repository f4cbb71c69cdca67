"""Wrong: its dropout layers are in evaluation mode while it trains, and in training mode between steps."""

import torch
from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class DropoutInEvaluationMode(ByHand):
    """Wrong: its dropout layers are in evaluation mode while it trains, and in training mode between steps."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        layers = [m for m in self.model.modules() if isinstance(m, (nn.Dropout, nn.Dropout2d))]
        for layer in layers:
            layer.eval()
        loss = super().train_step(batch)
        for layer in layers:
            layer.train()
        return loss
