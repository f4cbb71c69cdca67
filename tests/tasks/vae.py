"""A variational autoencoder: two losses, and random numbers of its own."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


class VAE(nn.Module):
    """(N, features) to what is made again of them, and the mean and logarithmic variance of the code."""

    def __init__(self, features: int, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.mean, self.spread = nn.Linear(width, code), nn.Linear(width, code)
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.GELU(), nn.Linear(width, features))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = self.encoder(x)
        mean, spread = self.mean(seen), self.spread(seen)
        code = mean + torch.randn_like(mean) * (0.5 * spread).exp() if self.training else mean
        return {"made": self.decoder(code), "mean": mean, "spread": spread}


class Task(relay.Task):
    global_batch_size, learning_rate, epochs = 32, 1e-3, 2
    features, width, code = 24, 32, 4
    train_count, test_count = 256, 64
    weight = 0.1

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        return self._made(self.train_count, 1), self._made(self.test_count, 2)

    def _made(self, count: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        codes = torch.randn(count, self.code, generator=generator)
        mixing = torch.randn(self.code, self.features, generator=torch.Generator().manual_seed(0))
        return TensorDataset((codes @ mixing).tanh())

    def model(self) -> nn.Module:
        return VAE(self.features, self.width, self.code)

    def loss(self, outputs: dict[str, torch.Tensor], batch: Any) -> torch.Tensor:
        mean, spread = outputs["mean"], outputs["spread"]
        apart = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return F.mse_loss(outputs["made"], batch[0]) + self.weight * apart

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, self.learning_rate)

    def metrics(self, outputs: dict[str, torch.Tensor], batch: Any) -> dict[str, torch.Tensor]:
        return {"reconstruction": F.mse_loss(outputs["made"], batch[0])}
