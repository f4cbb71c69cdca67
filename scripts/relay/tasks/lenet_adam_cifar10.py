"""LeNet on CIFAR-10 with Adam: document 000's example of Lightning."""

import torch
from torch import nn

from relay.tasks._data import Cifar10
from relay.tasks._lenet import LeNet


class Task(LeNet, Cifar10):
    global_batch_size, learning_rate = 128, 0.001

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, self.learning_rate)
