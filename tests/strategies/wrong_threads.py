"""Wrong: it computes in more threads than are declared for its process."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Threads(ByHand):
    """Wrong: it computes in more threads than are declared for its process."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        super().build()
        torch.set_num_threads(3)
