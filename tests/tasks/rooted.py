"""A model with parameters of its own beside its layers, as a position's or a class's embedding is."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay

WIDTH, DEPTH = 8, 8


class Rooted(nn.Module):
    """Layers between two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Parameter(torch.randn(WIDTH) / 10) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * (1 + self.first)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x * (1 + self.last)


class Task(relay.Task):
    learning_rate, global_batch_size = 0.01, 16

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        generator = torch.Generator().manual_seed(0)
        data = TensorDataset(*(torch.randn(128, WIDTH, generator=generator) for _ in range(2)))
        return data, data

    def model(self) -> nn.Module:
        return Rooted()

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.mse_loss(outputs, batch[1].to(outputs.dtype))

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, self.learning_rate)
