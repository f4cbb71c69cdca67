"""Wrong: it mixes up the modes: predicts in training mode, and then trains in evaluation mode."""

from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class Mode(ByHand):
    """Wrong: it mixes up the modes, which shows in the accuracy of networks with dropout alone."""

    requirements = Requirements(processes="one", devices=("cpu",))

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        self.model.train()
        outputs = self.forward(batch)
        self.model.eval()
        return outputs
