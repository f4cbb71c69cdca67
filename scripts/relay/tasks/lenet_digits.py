"""LeNet on scikit-learn's digits: a real dataset that needs no network."""

from relay.tasks._data import Digits
from relay.tasks._lenet import LeNet


class Task(LeNet, Digits):
    global_batch_size, learning_rate = 64, 0.02
