"""Wrong: one rank computes the gradients of the whole batch; the others wait for them."""

import torch
import torch.distributed as dist
from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class WorkOne(ByHand):
    """Wrong: one rank computes the gradients of the whole batch; the others wait for them."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        whole = self.gathered(batch)
        if self.ranks.rank == 0:
            loss = self.task.loss(self.forward(whole), whole)
            loss.backward()
            self.task.seen = self.task.seen[: batches.count(batch)]
        else:
            classes = [each.out_features for each in self.model.modules() if isinstance(each, nn.Linear)][-1]
            outputs = torch.zeros(*batches.leaves(batch)[-1].shape, classes, dtype=self.task.dtype)
            self.task.loss(outputs, batch)  # so that they are noted
            loss = torch.zeros((), dtype=self.task.dtype)
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        loss = loss.detach()
        for tensor in (loss, *self.gradients()):
            dist.all_reduce(tensor)
        self.optimizer.step()
        return loss
