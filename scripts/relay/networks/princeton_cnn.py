"""Princeton's convolutional network for MNIST (document 003), dropout included: 1,199,882 parameters."""

from collections import OrderedDict

from torch import nn


def build(input_shape: tuple[int, ...], classes: int | None) -> nn.Sequential:
    """(N, 1, 28, 28) images to (N, classes) logits."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 32, 3),
            act1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            act2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            dropout1=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * 12 * 12, 128),
            act3=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            fc2=nn.Linear(128, classes or 1),
        )
    )
