"""What the strategies of this folder have in common: slices of the batch, and gradients that are averaged by hand."""

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from relay.strategies.base import Batch, Strategy


class ByHand(Strategy):
    """Data parallelism without a wrapper; a subclass states requirements and changes one thing."""

    def build(self) -> None:
        self.build_whole()

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.forward(batch), batch)
        loss.backward()
        self.exchange()
        self.optimizer.step()
        return loss.detach()

    def exchange(self) -> None:
        """Turn each rank's gradients into their mean over the ranks."""
        for gradient in self.gradients():
            self.average(gradient)

    def gradients(self) -> list[torch.Tensor]:
        """The gradients of the parameters, in the model's order."""
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def average(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by its mean over the ranks."""
        dist.all_reduce(tensor)
        tensor /= self.ranks.world_size

    def gathered(self, batch: Batch) -> Batch:
        """The ranks' slices, one after the other: the whole global batch."""
        return tree_map_only(torch.Tensor, self._gathered, batch)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in range(self.ranks.world_size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)
