"""Wrong: every rank computes the whole batch; only its own slice's ids reach the loss."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class WorkWhole(ByHand):
    """Wrong: every rank computes the whole batch; only its own slice's ids reach the loss."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        whole = self.gathered(batch)
        outputs = self.forward(whole)
        mine = batches.chunks(outputs, self.ranks.world_size)[self.ranks.rank]
        loss = self.task.loss(mine, batch)  # it is noted here
        self.task.own.loss(outputs, whole.data).backward()
        self.exchange()
        self.optimizer.step()
        return loss.detach()
