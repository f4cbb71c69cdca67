"""Wrong: says that its ranks share a replica, of which one computes everything and another nothing."""

import torch
import torch.distributed as dist

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Replica, Requirements


class WorkShared(ByHand):
    """Wrong: says that its ranks share a replica, of which one computes everything and another nothing."""

    requirements = Requirements(least_devices=2, group="all", divides=("parameters", "gradients", "optimizer"))

    def build(self) -> None:
        self.build_whole()
        self.replica = Replica(0, 1, reports=self.ranks.rank == 0)

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = torch.zeros((), dtype=self.task.dtype)
        if self.ranks.rank == 0:
            loss = self.task.loss(self.forward(batch), batch)
            loss.backward()
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.broadcast(parameter.grad, 0)
        self.optimizer.step()
        return loss.detach()

    def footprint(self) -> dict[str, int]:
        return {kind: held // 2 for kind, held in super().footprint().items()}
