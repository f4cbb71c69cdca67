"""Wrong: its evaluation changes the model."""

from typing import Any

import torch

from relay.strategies.base import Batch, Requirements, Strategy


class EvaluationTrains(Strategy):
    """Wrong: its evaluation changes the model."""

    requirements = Requirements(processes="one", divides=())

    def build(self) -> None:
        self.build_whole()

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        for parameter in self.model.parameters():
            parameter *= 0.9999
        return super().predict(batch)
