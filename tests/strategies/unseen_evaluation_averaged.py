"""Wrong: from its tenth step on it evaluates a running mean of its parameters."""

from typing import Any

import torch

from relay.strategies.base import Batch, Requirements, Strategy


class EvaluationAveraged(Strategy):
    """Wrong: from its tenth step on it evaluates a running mean of its parameters."""

    requirements = Requirements(processes="one", divides=())

    def build(self) -> None:
        self.build_whole()
        self.steps = 0
        self.mean: list[torch.Tensor] = []

    def update(self) -> None:
        super().update()
        self.steps += 1
        now = [parameter.detach().clone() for parameter in self.model.parameters()]
        if self.steps < 10:
            self.mean = now
        else:
            self.mean = [0.9 * mean + 0.1 * parameter for mean, parameter in zip(self.mean, now, strict=True)]

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        own = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._use(self.mean)
        outputs = super().predict(batch)
        self._use(own)
        return outputs

    def _use(self, values: list[torch.Tensor]) -> None:
        for parameter, value in zip(self.model.parameters(), values, strict=True):
            parameter.copy_(value)
