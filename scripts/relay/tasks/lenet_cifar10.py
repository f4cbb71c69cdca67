"""LeNet on CIFAR-10, as document 000 trains it."""

from relay.tasks._data import Cifar10
from relay.tasks._lenet import LeNet


class Task(LeNet, Cifar10):
    global_batch_size, learning_rate = 128, 0.05
    schedule = {"kind": "cosine"}
