"""Each process has one stage of the layers. The batch passes through the stages, so that one process works at a time.

This is document 002's model parallelism, with a process for each device. Pipelines are compared with it.
"""

from __future__ import annotations

import torch

from relay.strategies._stages import Staged
from relay.strategies.base import Replica, Requirements


class ModelParallel(Staged):
    """One stage for each process, in the order of ranks, all of nearly equal cost. No work overlaps."""

    requirements = Requirements(
        least_devices=2,
        group="all",
        needs=("layers", "cuts"),
        divides=("parameters", "gradients", "optimizer"),
        options={"cut_before": ""},
    )

    def build(self, cut_before: str) -> None:
        self.cut_before = cut_before
        last = self.ranks.world_size - 1
        self.replica = Replica(0, 1, reports=self.ranks.rank == last)
        self.place(range(self.ranks.world_size))
        self.make_optimizer()

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        ((index, stage),) = self.stages.items()
        count, loss = len(inputs), self.no_loss
        if index > 0:
            inputs = self.receive(self.flow[index], index - 1, count).requires_grad_()
        outputs = stage(inputs)
        if self.replica.reports:
            loss = self.task.loss(outputs, targets)
            self.backward(loss)
        else:
            self.send(outputs, index + 1)
            outputs.backward(self.receive(self.flow[index + 1], index + 1, count))
        if inputs.grad is not None:
            self.send(inputs.grad, index - 1)
        self.update()
        return loss.detach()
