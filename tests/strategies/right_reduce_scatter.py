"""Right: each rank sums one part of the gradients, and all ranks gather the parts."""

import torch
import torch.distributed as dist

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class ReduceScatter(ByHand):
    """Right: each rank sums one part of the gradients, and all ranks gather the parts."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def average(self, tensor: torch.Tensor) -> None:
        count = self.ranks.world_size
        flat = torch.zeros(-(-tensor.numel() // count) * count, dtype=tensor.dtype)
        flat[: tensor.numel()] = tensor.flatten()
        mine = torch.empty(len(flat) // count, dtype=tensor.dtype)
        dist.reduce_scatter(mine, list(flat.chunk(count)))
        tensor.copy_(self.gathered(mine / count)[: tensor.numel()].view_as(tensor))
