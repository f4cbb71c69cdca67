"""Right: a parameter server with a process of its own, which computes no samples."""

import torch

from relay.strategies.base import Batch, Replica, Requirements
from relay.strategies.right_parameter_server import ParameterServer


class ServerRank(ParameterServer):
    """Right: rank 0 keeps the optimizer for the others, and computes no samples."""

    requirements = Requirements(least_devices=3, divides=("samples",))

    def build(self) -> None:
        super().build()
        rank, workers = self.ranks.rank, self.computing
        self.replica = Replica(max(rank - 1, 0), workers, reports=rank > 0)

    @property
    def computing(self) -> int:
        return self.ranks.world_size - 1

    def train_step(self, batch: Batch) -> torch.Tensor:
        if self.ranks.rank > 0:
            return super().train_step(batch)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.exchange()
        return torch.full((), torch.nan)
