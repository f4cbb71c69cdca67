"""Matrices are split over the ranks, and every rank computes the whole batch (named in document 004; Megatron-LM)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed.tensor.parallel import loss_parallel as sharded_loss

from relay.strategies._tensor_split import agree, split, whole
from relay.strategies.base import Batch, Replica, Requirements, Strategy


class TensorParallel(Strategy):
    """One replica over all ranks, with torch.distributed.tensor.

    With `loss_parallel`, the outputs stay sharded over the classes, and the loss is computed from these shards: the
    outputs are those of the model's last nn.Linear, and their cross entropy is the loss.
    """

    requirements = Requirements(
        least_devices=2,
        divides=("parameters", "gradients", "optimizer"),
        group="all",
        needs=("heads", "matrices"),
        cross_entropy_only={"loss_parallel": (True,)},
        options={"loss_parallel": False},
    )
    loss_parallel = False

    def build(self, loss_parallel: bool) -> None:
        self.loss_parallel = loss_parallel
        self.tensor = self.ranks.mesh(self.ranks.world_size)
        self.model = self.task.model()
        split(self.task, self.model, self.tensor, classes_sharded=loss_parallel)
        self.model.to(self.ranks.device)  # after the split, so that no device ever holds the whole model
        self.make_optimizer()
        self.replica = Replica(0, 1, reports=self.ranks.rank == 0)

    def train_step(self, batch: Batch) -> torch.Tensor:
        # Within, cross entropy accepts outputs that are sharded over the classes, also when backward.
        with sharded_loss() if self.loss_parallel else nullcontext():
            loss: torch.Tensor = whole(super().train_step(batch))
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        agree(self.model, self.tensor)

    def predict(self, batch: Batch) -> Any:
        return whole(super().predict(batch))
