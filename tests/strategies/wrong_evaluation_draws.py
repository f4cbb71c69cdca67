"""Wrong: evaluation draws random numbers, so that the training after it drops other units."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class EvaluationDraws(ByHand):
    """Wrong: evaluation draws random numbers, so that the training after it drops other units."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(len(inputs))
        return super().predict(inputs[order])[order.argsort()]
