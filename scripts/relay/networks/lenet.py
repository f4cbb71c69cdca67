"""LeNet for 3x32x32 images, as in document 000 (the Alliance's CIFAR-10 examples): 62,006 parameters."""

from collections import OrderedDict

from torch import nn


def build(input_shape: tuple[int, ...], classes: int | None) -> nn.Sequential:
    """(N, 3, 32, 32) images to (N, classes) logits."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 6, 5),
            act1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            act2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * 5 * 5, 120),
            act3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            act4=nn.ReLU(),
            fc3=nn.Linear(84, classes or 1),
        )
    )
