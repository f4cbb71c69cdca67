"""Wrong: it predicts in training mode, where dropout is on."""

from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class PredictsInTrainingMode(ByHand):
    """Wrong: it never leaves training mode, so that units are dropped while it predicts."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        return self.forward(batch)
