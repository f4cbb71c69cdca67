"""Where the built-in tasks' images come from."""

from __future__ import annotations

from pathlib import Path

from relay.datasets.cifar10 import CIFAR10
from relay.datasets.generate import digits, write_synthetic
from relay.datasets.mnist import MNIST
from relay.datasets.public import members
from relay.tasks import _images


class Digits(_images.Images):
    """scikit-learn's 1,797 grey images of 8 × 8 pixels; 360 of them are for testing."""

    data, generated = "digits", True

    def prepare(self, folder: Path) -> None:
        _images.save(digits(test_count=360), folder)


class Cifar10(_images.Images):
    """CIFAR-10: 60,000 images of 3 × 32 × 32 pixels; 10,000 of them are for testing."""

    data = "cifar10"

    def prepare(self, folder: Path) -> None:
        _images.save(CIFAR10.read(members(CIFAR10, self.dataset_root, self.dataset_mirror)), folder)


class Mnist(_images.Images):
    """MNIST: 70,000 grey images of 28 × 28 pixels; 10,000 of them are for testing."""

    data = "mnist"
    channels, side = 1, 28

    def prepare(self, folder: Path) -> None:
        _images.save(MNIST.read(members(MNIST, self.dataset_root, self.dataset_mirror)), folder)


class Synthetic(_images.Images):
    """Made-up images that can be learnt, as many as asked for: for benchmarks, and for trying things out."""

    data, generated = "synthetic", True
    train_count, test_count = 10_000, 2_000
    stored_side = 32  # the images' own; they are magnified to `side`

    def prepare(self, folder: Path) -> None:
        shape = self.channels, self.stored_side, self.stored_side
        write_synthetic(folder, shape, self.classes, self.train_count, self.test_count)
        _images.write_statistics(folder)
