"""Right: DistributedDataParallel, with torch's ZeroRedundancyOptimizer: each rank updates a part of the parameters."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from relay.strategies.base import Batch, Requirements, Strategy


class ZeroRedundancy(Strategy):
    """Right: each rank keeps the optimizer's state of a part of the parameters."""

    requirements = Requirements(least_devices=2, divides=("samples", "optimizer"))

    def build(self) -> None:
        self.model = self.task.model().to(self.ranks.device)
        self.module = DistributedDataParallel(self.model)
        optimizer = self.task.optimizer(self.model.parameters())
        (group,) = optimizer.param_groups
        options = {name: value for name, value in group.items() if name != "params"}
        self.zero = ZeroRedundancyOptimizer(self.model.parameters(), type(optimizer), **options)
        self.optimizer = self.zero.optim  # this rank's part, under the parameters' own names

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in (*self.zero.param_groups, *self.optimizer.param_groups):
            group["lr"] = learning_rate

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.model.zero_grad()
        loss = self.task.loss(self.forward(batch), batch)
        loss.backward()
        self.zero.step()
        return loss.detach()
