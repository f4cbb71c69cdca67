"""A network that uses one matrix twice."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


class Task(relay.Task):
    global_batch_size, learning_rate = 16, 0.05

    def datasets(self, folder: Path) -> list[TensorDataset]:
        points = torch.randn(90, 6, generator=torch.Generator().manual_seed(1))
        return [TensorDataset(part, part[:, :3].argmax(1)) for part in points.split([60, 30])]

    def model(self) -> nn.Module:
        first, again = nn.Linear(6, 6), nn.Linear(6, 6)
        again.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), again, nn.Tanh(), nn.Linear(6, 3))

    def loss(self, outputs: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, self.learning_rate)
