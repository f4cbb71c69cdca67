"""ResNet-18 for 32x32 images (He et al. 2016, section 4.2's stem: a 3x3 convolution, no pooling before the blocks)."""

from collections import OrderedDict

import torch
from torch import nn

GROUPS = 4  # divides the channels of every layer, also of the gate's network, whose first layer has 4


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


def build(input_shape: tuple[int, ...], classes: int | None, norm: str = "batch", width: int = 64) -> nn.Sequential:
    """(N, 3, 32, 32) images to (N, classes) logits. `norm` is "batch" or "group", `width` the channels of conv1."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
        norm1=_norm(norm, width),
        act1=nn.ReLU(),
    )
    channels = width
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            layers[f"block{stage + 1}_{block + 1}"] = BasicBlock(channels, width * 2**stage, stride, norm)
            channels = width * 2**stage
    layers |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, classes or 1))
    return nn.Sequential(layers)
