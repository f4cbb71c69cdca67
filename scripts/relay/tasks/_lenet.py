"""LeNet for 3x32x32 images, as in document 000 (the Alliance's CIFAR-10 examples): 62,006 parameters.

Pooling comes before each ReLU: the same bits, of a quarter of the numbers.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from relay.tasks._images import Images


class LeNet(Images):
    """Document 000 trains it with SGD at 0.1, with and without momentum; these values reach 60 % on CIFAR-10."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(self.channels, 6, 5),
                pool1=nn.MaxPool2d(2),
                act1=nn.ReLU(),
                conv2=nn.Conv2d(6, 16, 5),
                pool2=nn.MaxPool2d(2),
                act2=nn.ReLU(),
                flatten=nn.Flatten(),
                fc1=nn.Linear(16 * 5 * 5, 120),
                act3=nn.ReLU(),
                fc2=nn.Linear(120, 84),
                act4=nn.ReLU(),
                fc3=nn.Linear(84, self.classes),
            )
        )

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate, momentum=0.9)
