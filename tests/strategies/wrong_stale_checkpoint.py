"""Wrong: saves the parameters as they were a step before."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class StaleCheckpoint(ByHand):
    """Wrong: saves the parameters as they were a step before."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.before = [p.detach().clone() for p in self.model.parameters()]
        return super().train_step(batch)

    @torch.no_grad()
    def save(self, directory: Path) -> Future[Any]:
        now = [p.detach().clone() for p in self.model.parameters()]
        for parameter, old in zip(self.model.parameters(), self.before, strict=True):
            parameter.copy_(old)
        written = super().save(directory)
        for parameter, new in zip(self.model.parameters(), now, strict=True):
            parameter.copy_(new)
        return written
