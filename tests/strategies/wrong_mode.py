"""Wrong: it mixes up the modes: predicts in training mode, and then trains in evaluation mode."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Mode(ByHand):
    """Wrong: it mixes up the modes, which shows in the accuracy of networks with dropout alone."""

    requirements = Requirements(processes="one", devices=("cpu",))

    @torch.no_grad()
    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        self.model.train()
        outputs = self.forward(inputs)
        self.model.eval()
        return outputs
