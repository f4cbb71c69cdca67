"""Princeton's convolutional network on MNIST (document 003), dropout included: 1,199,882 parameters."""

from collections import OrderedDict

import torch
from torch import nn

from relay.tasks._data import Mnist


class Task(Mnist):
    global_batch_size, learning_rate = 64, 1.0
    schedule = {"kind": "step", "every_epochs": 1, "gamma": 0.7}

    def model(self) -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 32, 3),
                act1=nn.ReLU(),
                conv2=nn.Conv2d(32, 64, 3),
                act2=nn.ReLU(),
                pool=nn.MaxPool2d(2),
                dropout1=nn.Dropout(0.25),
                flatten=nn.Flatten(),
                fc1=nn.Linear(64 * 12 * 12, 128),
                act3=nn.ReLU(),
                dropout2=nn.Dropout(0.5),
                fc2=nn.Linear(128, self.classes),
            )
        )

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adadelta(parameters, self.learning_rate)
