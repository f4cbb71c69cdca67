"""Wrong: every rank computes the whole batch; only its own slice's ids reach the loss."""

import torch
import torch.nn.functional as F

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class WorkWhole(ByHand):
    """Wrong: every rank computes the whole batch; only its own slice's ids reach the loss."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        outputs, wanted = self.forward(self.gathered(inputs)), self.gathered(targets)
        mine = outputs.chunk(self.ranks.world_size)[self.ranks.rank]
        loss = self.task.loss(mine, targets)  # it is noted here
        scale = getattr(self.task, "scale", 1.0)
        (F.cross_entropy(outputs.flatten(0, -2), (wanted % self.task.classes).flatten()) * scale).backward()
        self.exchange()
        self.optimizer.step()
        return loss.detach()
