"""The autoencoder of the tutorial that UTSA's page (document 002) leads to, on MNIST: 234,640 parameters."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay
from relay.datasets import arrays
from relay.datasets.mnist import MNIST
from relay.datasets.public import members

PIXELS = 28 * 28


class Task(relay.Task):
    """Layers of `width` numbers, each with a ReLU. An image is its own target."""

    unit = "images"
    data = "mnist-pixels"
    global_batch_size, learning_rate = 128, 0.001
    width = 128

    def prepare(self, folder: Path) -> None:
        """Images as vectors float32 (N, 784) from 0 to 1."""
        read = MNIST.read(members(MNIST, self.dataset_root, self.dataset_mirror))
        images = {name: read[f"{name}-inputs"] for name in arrays.SPLITS}
        flat = {name: each.reshape(len(each), PIXELS).astype(np.float32) / 255 for name, each in images.items()}
        arrays.save({f"{name}-inputs": each for name, each in flat.items()}, folder)

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        train, test = (TensorDataset(*map(torch.from_numpy, arrays.load(folder, name))) for name in arrays.SPLITS)
        return train, test

    def model(self) -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                encoder1=nn.Linear(PIXELS, self.width),
                act1=nn.ReLU(),
                encoder2=nn.Linear(self.width, self.width),
                act2=nn.ReLU(),
                decoder1=nn.Linear(self.width, self.width),
                act3=nn.ReLU(),
                decoder2=nn.Linear(self.width, PIXELS),
                act4=nn.ReLU(),
            )
        )

    def loss(self, outputs: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(outputs, batch[0])

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, self.learning_rate)
