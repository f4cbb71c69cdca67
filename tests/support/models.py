"""Models as users bring them: functional calls, skip connections, tied weights, lists of blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor


class UNet(nn.Module):
    """A U-Net of functional calls: (N, 1, H, W) to the same shape. It is no nn.Sequential."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(1, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm = nn.BatchNorm2d(2 * width)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up2 = nn.Conv2d(4 * width, width, 3, padding=1)
        self.up1 = nn.Conv2d(2 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.down1(images))
        b = F.relu(self.norm(self.down2(F.max_pool2d(a, 2))))
        c = F.relu(self.middle(F.max_pool2d(b, 2)))
        c = F.relu(self.up2(torch.cat([F.interpolate(c, scale_factor=2), b], 1)))
        return self.out(F.relu(self.up1(torch.cat([F.interpolate(c, scale_factor=2), a], 1))))


class Residual(nn.Module):
    """x + relu(f(x)): what an nn.Sequential of its children would not compute."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.outer(inputs + F.relu(self.inner(inputs)))


class Scaled(nn.Module):
    """A perceptron with a learned scale of no dimension, as CLIP has one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.layers = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.scale * self.layers(inputs)


def encoder(dropout: float = 0.0, activation: str = "relu") -> nn.TransformerEncoder:
    """torch's own encoder: two layers, (N, L, 16) to the same shape."""
    layer = nn.TransformerEncoderLayer(16, 2, 64, dropout, activation, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


class Mixture(nn.Module):
    """A mixture of experts of one's own, by the protocol: each row goes to the expert of its largest score."""

    def __init__(self, width: int = 6, experts: int = 4) -> None:
        super().__init__()
        self.experts = experts
        self.scores = nn.Linear(width, experts)
        self.matrices = nn.Parameter(torch.randn(experts, width, width))
        self.offsets = nn.Parameter(torch.randn(experts, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        gates, chosen = self.scores(inputs).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        computed = self.compute(inputs[order], chosen.bincount(minlength=self.experts))
        return inputs + gates.unsqueeze(-1) * computed[order.argsort()]

    def compute(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return self.run_experts(tokens, counts)

    def run_experts(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        matrices, offsets = (p.to_local() if isinstance(p, DTensor) else p for p in (self.matrices, self.offsets))
        parts = zip(tokens.split(counts.tolist()), matrices, offsets, strict=True)
        return torch.cat([torch.tanh(rows @ matrix + offset) for rows, matrix, offset in parts])


class Routed(nn.Module):
    """Two mixtures of experts behind each other, and a head: (N, 6) to (N, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Mixture(), Mixture(), nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(rows)))
