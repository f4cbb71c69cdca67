"""ResNet-18 for 32x32 images (He et al. 2016, section 4.2's stem: a 3x3 convolution, no pooling before the blocks)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from relay.tasks._images import Images

GROUPS = 4  # divides the channels of every layer


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(GROUPS, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a strided 1x1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(norm, channels_out)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, channels_out)
        self.act2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            convolution = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, _norm(norm, channels_out))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(N, channels_in, H, W) to (N, channels_out, H / stride, W / stride)."""
        outputs = self.act1(self.norm1(self.conv1(inputs)))
        outputs = self.norm2(self.conv2(outputs))
        return self.act2(outputs + self.shortcut(inputs))


class ResNet18(Images):
    """`norm` is "batch" or "group", `width` the channels of the first convolution."""

    global_batch_size, learning_rate = 128, 0.1
    schedule = {"kind": "cosine"}
    small = {"width": 16}  # with fewer, channels cannot lie last in memory: see `relay.card.channels_last`
    norm, width = "batch", 64

    def model(self) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(self.channels, self.width, 3, padding=1, bias=False),
            norm1=_norm(self.norm, self.width),
            act1=nn.ReLU(),
        )
        channels = self.width
        for stage in range(4):
            for block in range(2):
                stride = 2 if stage > 0 and block == 0 else 1
                layers[f"block{stage + 1}_{block + 1}"] = BasicBlock(channels, self.width * 2**stage, stride, self.norm)
                channels = self.width * 2**stage
        layers |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, self.classes))
        return nn.Sequential(layers)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate, momentum=0.9, weight_decay=5e-4)
