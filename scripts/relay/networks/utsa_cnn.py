"""UTSA's convolutional network for MNIST (document 002), dropout included: 21,840 parameters."""

from collections import OrderedDict

from torch import nn


def build(input_shape: tuple[int, ...], classes: int | None) -> nn.Sequential:
    """(N, 1, 28, 28) images to (N, classes) logits."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 10, 5),
            pool1=nn.MaxPool2d(2),
            act1=nn.ReLU(),
            conv2=nn.Conv2d(10, 20, 5),
            dropout1=nn.Dropout2d(),
            pool2=nn.MaxPool2d(2),
            act2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(320, 50),
            act3=nn.ReLU(),
            dropout2=nn.Dropout(),
            fc2=nn.Linear(50, classes or 1),
        )
    )
