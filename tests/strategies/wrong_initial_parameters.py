"""Wrong: the ranks start from initial parameters of their own."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class InitialParameters(ByHand):
    """Wrong: the ranks start from initial parameters of their own; rank 0's are right."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter *= 1 + 0.01 * self.ranks.rank
