"""ResNet-18 on CIFAR-10."""

from relay.tasks._data import Cifar10
from relay.tasks._resnet18 import ResNet18


class Task(ResNet18, Cifar10):
    """As documented in `ResNet18`."""
