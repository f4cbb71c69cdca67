"""Models as users bring them: one with skip connections, and some that cannot be cut."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class UNet(nn.Module):
    """Skip connections, BatchNorm, dropout as a function, and changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.down2 = nn.Conv2d(4, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(9, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.norm(self.down1(x)), inplace=True)
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = F.dropout(F.relu(self.middle(F.max_pool2d(b, 2))), 0.5, self.training)
        c = self.up2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        c[:, 0] += 1
        first = c[:, 0]
        first.mul_(2)  # changes c
        return self.out(self.up1(torch.cat([F.interpolate(c, scale_factor=2), a, x], 1)))


class Shared(nn.Module):
    """One layer, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.between = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.between(self.layer(x)))


class Counted(nn.Module):
    """Its calls depend on the data, at the top."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return self.b(x) if x.sum().item() > 0 else x


class Stateful(Counted):
    """It keeps a tensor from one batch to the next."""

    state: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x) if self.state is None else self.a(x) + self.state
        self.state = x.detach()
        return self.b(x)


class Through(torch.autograd.Function):
    """Has a module compute, as what saves memory does."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: torch.Tensor) -> Any:
        return module(x)


class Handed(nn.Module):
    """Hands a module on to a function with gradients of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(Through.apply(self.a, x))


class Hidden(Counted):
    """A part reads what another one has left in it, not what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.b.left = self.a(x)
        self.b.forward = lambda y: F.linear(y, self.b.weight) + self.b.left
        return self.b(x)
