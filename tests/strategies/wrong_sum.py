"""Wrong: sums the ranks' gradients in place of averaging them."""

import torch.distributed as dist

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Sum(ByHand):
    """Wrong: sums the ranks' gradients in place of averaging them."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def exchange(self) -> None:
        for gradient in self.gradients():
            dist.all_reduce(gradient)
