"""UTSA's convolutional network on MNIST (document 002), dropout included: 21,840 parameters."""

from collections import OrderedDict

import torch
from torch import nn

from relay.tasks._data import Mnist


class Task(Mnist):
    global_batch_size, learning_rate = 64, 0.01

    def model(self) -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 10, 5),
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
                fc2=nn.Linear(50, self.classes),
            )
        )

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate, momentum=0.5)
