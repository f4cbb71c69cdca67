"""Models as users bring them: functional calls, several inputs, outputs of many kinds; and some that cannot be cut."""

from dataclasses import dataclass

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


@dataclass
class Found:
    """Outputs of a class of one's own."""

    logits: torch.Tensor
    mask: torch.Tensor
    note: str = "plain"


class GPT(nn.Module):
    """Positions and a mask from the batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(11, 8), nn.Parameter(torch.randn(6, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(8, 11, bias=False)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> Found:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = places >= lengths[:, None]
        hidden = self.body(self.token(tokens) + self.position[places], src_key_padding_mask=mask)
        with torch.no_grad():
            certain = hidden.norm(dim=-1)
        return Found(self.head(hidden) * certain[..., None], mask)


class Routed(nn.Module):
    """A part whose calls depend on the data, between two that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.experts, self.after = nn.Linear(4, 4), Experts(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.after(self.experts(self.before(x)))}


class Experts(nn.Module):
    """Each of two layers computes the samples that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for place, layer in enumerate(self.layers):
            chosen = (x.sum(1) > 0).long() == place
            if chosen.any():
                found[chosen] = layer(x[chosen])
        return found


class Recurrent(nn.Module):
    """Several layers of an LSTM, then a head; the state crosses too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.second, self.head = nn.LSTM(3, 4, 2), nn.LSTM(4, 4), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, (state, _) = self.lstm(x)
        outputs, _ = self.second(outputs)
        return self.head(torch.cat([outputs[-1], state[-1]], -1))


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


class ReadFirst(nn.Module):
    """The weight of a layer is read by itself before the layer is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size: torch.Tensor = self.first.weight.square().mean()
        return self.second(torch.tanh(self.first(x) * size))
