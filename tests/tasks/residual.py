"""A model whose forward is more than its children one after the other: a sum, a function, an unused order."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


class Residual(nn.Module):
    """(N, features) to (N, 3), by way of `b(x + relu(a(x)))`."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.b = nn.Linear(features, 3)  # declared in another order than it is called
        self.a = nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x + F.relu(self.a(x)))


class Task(relay.Task):
    global_batch_size, learning_rate = 16, 0.1
    features, train_count, test_count = 6, 50, 21

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        return self._made(self.train_count, 1), self._made(self.test_count, 2)

    def _made(self, count: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(count, self.features, generator=generator)
        return TensorDataset(points, points[:, :3].argmax(1))

    def model(self) -> nn.Module:
        return Residual(self.features)

    def loss(self, outputs: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate, momentum=0.9)

    def metrics(self, outputs: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        return {"accuracy": (outputs.argmax(-1) == batch[1]).double().mean()}
