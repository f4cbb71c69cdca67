"""One of the product's networks on random images of CIFAR-10's shape: its speed, where the data are not at hand."""

import importlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from relay.tasks._images import Images


class Task(Images):
    network = "lenet_cifar10"
    global_batch_size, learning_rate = 512, 0.01

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        self.most, self.mean, self.std = (torch.full((3, 1, 1), value) for value in (255.0, 0.5, 0.29))
        return self._made(50_000, 1), self._made(10_000, 2)

    def _made(self, count: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        shape = (count, self.channels, self.side, self.side)
        images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return TensorDataset(images, torch.randint(self.classes, (count,), generator=generator))

    def model(self) -> nn.Module:
        network: nn.Module = importlib.import_module(f"relay.tasks.{self.network}").Task().model()
        return network

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate)
