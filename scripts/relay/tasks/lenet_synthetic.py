"""LeNet on made-up images, as many as asked for."""

from relay.tasks._data import Synthetic
from relay.tasks._lenet import LeNet


class Task(LeNet, Synthetic):
    global_batch_size, learning_rate = 64, 0.02
