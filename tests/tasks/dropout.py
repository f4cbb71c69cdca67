"""A small network with dropout on made-up images like MNIST's; the counts of samples are no multiples of any batch."""

from collections import OrderedDict

from torch import nn

from relay.tasks import princeton_mnist, utsa_mnist
from relay.tasks._data import Synthetic


class Net(nn.Sequential):
    """Its `train` returns nothing, as many do that people write."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


class Task(Synthetic):
    global_batch_size, learning_rate = 32, 1.0
    schedule = princeton_mnist.Task.schedule
    channels, side, stored_side = 1, 28, 28
    train_count, test_count = 487, 101
    optimizer = princeton_mnist.Task.optimizer

    def model(self) -> nn.Module:
        return Net(OrderedDict(utsa_mnist.Task.model(self).named_children()))
