"""A small network with dropout on made-up images like MNIST's; the counts of samples are no multiples of any batch."""

from relay.tasks import princeton_mnist, utsa_mnist
from relay.tasks._data import Synthetic


class Task(Synthetic):
    global_batch_size, learning_rate = 32, 1.0
    schedule = princeton_mnist.Task.schedule
    channels, side, stored_side = 1, 28, 28
    train_count, test_count = 487, 101
    model = utsa_mnist.Task.model
    optimizer = princeton_mnist.Task.optimizer
