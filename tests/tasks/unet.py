"""A U-Net that finds discs in noise: skip connections, functional calls, BatchNorm, dropout, and a Dice loss."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import relay


class Discs(Dataset[Any]):
    """Images float32 (1, side, side) of a disc under noise, and their masks; training images are flipped at random."""

    def __init__(self, count: int, side: int, *, first: int, flips: bool) -> None:
        self.count, self.side, self.first, self.flips = count, side, first, flips

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.first + index)
        x, y, radius = (torch.rand(3, generator=generator) * torch.tensor([1.0, 1.0, 0.3])).tolist()
        rows, columns = torch.meshgrid(*[torch.linspace(0, 1, self.side)] * 2, indexing="ij")
        mask = ((rows - x) ** 2 + (columns - y) ** 2 < (0.1 + radius) ** 2).float()[None]
        image = mask + torch.randn(1, self.side, self.side, generator=generator)
        if self.flips and torch.rand(()) < 0.5:
            return image.flip(-1), mask.flip(-1)
        return image, mask


class Twice(nn.Module):
    """Two convolutions with BatchNorm."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(channels_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(x)))


class UNet(nn.Module):
    """Three resolutions; what comes down is joined to what goes up."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.down1, self.down2 = Twice(1, width), Twice(width, 2 * width)
        self.middle = Twice(2 * width, 4 * width)
        self.up2, self.up1 = Twice(6 * width, 2 * width), Twice(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = F.dropout(self.middle(F.max_pool2d(b, 2)), self.dropout, self.training)
        c = self.up2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        return self.out(self.up1(torch.cat([F.interpolate(c, scale_factor=2.0), a], 1)))


class Task(relay.Task):
    unit = "images"
    global_batch_size, learning_rate, epochs = 16, 1e-3, 2
    width, side, dropout = 8, 32, 0.1
    train_count, test_count = 96, 32
    small = {"width": 2}  # noqa: RUF012

    def datasets(self, folder: Path) -> tuple[Discs, Discs]:
        return (
            Discs(self.train_count, self.side, first=0, flips=True),
            Discs(self.test_count, self.side, first=10**6, flips=False),
        )

    def model(self) -> nn.Module:
        return UNet(self.width, self.dropout)

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (
            F.binary_cross_entropy_with_logits(outputs, batch[1]) + 1 - self.dice(outputs.sigmoid(), batch[1])
        ).mean()

    def dice(self, found: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """The Dice coefficient of each sample."""
        both, all_of = (found * masks).sum((1, 2, 3)), (found + masks).sum((1, 2, 3))
        return (2 * both + 1) / (all_of + 1)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, self.learning_rate)

    def metrics(self, outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
        return {"dice": self.dice((outputs > 0).to(outputs.dtype), batch[1]).mean()}
