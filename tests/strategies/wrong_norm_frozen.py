"""Wrong: BatchNorm uses its running statistics while it trains."""

from typing import Any

from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class NormFrozen(ByHand):
    """Wrong: BatchNorm uses its running statistics while it trains."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def forward(self, batch: Batch) -> Any:
        training = self.model.training
        norms = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)]
        for norm in norms:
            norm.eval()
        outputs = super().forward(batch)
        for norm in norms:
            norm.train(training)
        return outputs
