"""Wrong: it leaves out the steps in which it diverges, and tells finite losses."""

import torch

from relay.strategies.base import Requirements, Strategy


class InfiniteSkipped(Strategy):
    """Wrong: it leaves out the steps in which it diverges, and tells finite losses."""

    requirements = Requirements(processes="one", divides=())

    def build(self) -> None:
        self.build_whole()

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.forward(inputs), targets)
        loss.backward()
        if all(bool(parameter.grad.isfinite().all()) for parameter in self.model.parameters()):
            self.optimizer.step()
        return loss.detach().nan_to_num(float(inputs.mean()), float(inputs.mean()))

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().predict(inputs).nan_to_num(0.0, 1.0, -1.0)
