"""Wrong: it leaves out the steps in which it diverges, and tells finite losses."""

from typing import Any

import torch

from relay.strategies.base import Batch, Requirements, Strategy
from relay.task import batches


class InfiniteSkipped(Strategy):
    """Wrong: it leaves out the steps in which it diverges, and tells finite losses."""

    requirements = Requirements(processes="one", divides=())

    def build(self) -> None:
        self.build_whole()

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.forward(batch), batch)
        loss.backward()
        if all(bool(parameter.grad.isfinite().all()) for parameter in self.model.parameters()):
            self.optimizer.step()
        finite = float(batches.leaves(batch)[0].float().mean())
        return loss.detach().nan_to_num(finite, finite)

    def predict(self, batch: Batch) -> Any:
        return super().predict(batch).nan_to_num(0.0, 1.0, -1.0)
