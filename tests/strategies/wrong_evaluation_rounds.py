"""Wrong: evaluation leaves the parameters rounded."""

from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class EvaluationRounds(ByHand):
    """Wrong: evaluation leaves the parameters rounded."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        outputs = super().predict(batch)
        for parameter in self.model.parameters():
            parameter.copy_(parameter.float())
        return outputs
