"""Wrong: BatchNorm uses its running statistics while it trains."""

import torch
from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class NormFrozen(ByHand):
    """Wrong: BatchNorm uses its running statistics while it trains."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        training = self.model.training
        norms = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)]
        for norm in norms:
            norm.eval()
        outputs = super().forward(inputs)
        for norm in norms:
            norm.train(training)
        return outputs
