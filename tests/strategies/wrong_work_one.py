"""Wrong: one rank computes the gradients of the whole batch; the others wait for them."""

import torch
import torch.distributed as dist

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class WorkOne(ByHand):
    """Wrong: one rank computes the gradients of the whole batch; the others wait for them."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        whole, wanted = self.gathered(inputs), self.gathered(targets)
        if self.ranks.rank == 0:
            outputs = self.forward(whole)
            loss = self.task.loss(outputs, wanted)
            loss.backward()
            self.task.seen = self.task.seen[: len(inputs)]
        else:
            outputs = torch.zeros(len(wanted), *wanted.shape[1:], self.task.classes, dtype=self.task.dtype)
            self.task.loss(outputs[: len(inputs)], targets)  # so that they are noted
            loss = torch.zeros((), dtype=self.task.dtype)
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        loss = loss.detach()
        for tensor in (loss, *self.gradients()):
            dist.all_reduce(tensor)
        self.optimizer.step()
        return loss
