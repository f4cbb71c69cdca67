"""Wrong: evaluation leaves the parameters rounded."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class EvaluationRounds(ByHand):
    """Wrong: evaluation leaves the parameters rounded."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    @torch.no_grad()
    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = super().predict(inputs)
        for parameter in self.model.parameters():
            parameter.copy_(parameter.float())
        return outputs
