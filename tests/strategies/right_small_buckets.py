"""Right: each gradient is averaged as soon as it is there, in pieces of at most 1,000 numbers, while others follow."""

import torch
import torch.distributed as dist

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements

MOST_NUMBERS = 1000


class SmallBuckets(ByHand):
    """Right: each gradient is averaged as soon as it is there, in small pieces."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        super().build()
        self.works: list[dist.Work] = []
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self._send)

    def _send(self, parameter: torch.Tensor) -> None:
        parameter.grad = parameter.grad.contiguous()
        parameter.grad /= self.ranks.world_size
        self.works += [dist.all_reduce(piece, async_op=True) for piece in parameter.grad.view(-1).split(MOST_NUMBERS)]

    def exchange(self) -> None:
        for work in self.works:
            work.wait()
        self.works.clear()
