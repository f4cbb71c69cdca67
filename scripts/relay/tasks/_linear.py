"""One linear layer on random data: the regressions of documents 001 and 004. Nothing can be learnt."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay
from relay.datasets import arrays
from relay.datasets.generate import random_regression


class Linear(relay.Task):
    """From `features` numbers to one."""

    data, generated = "random", True
    features, train_count, test_count = 10, 1000, 200

    def prepare(self, folder: Path) -> None:
        arrays.save(random_regression(self.features, self.train_count, self.test_count), folder)

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        train, test = (TensorDataset(*map(torch.from_numpy, arrays.load(folder, name))) for name in arrays.SPLITS)
        return train, test

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(linear=nn.Linear(self.features, 1)))

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.mse_loss(outputs, batch[1])

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate)
