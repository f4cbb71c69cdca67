"""A small task of a user's, as a file's text, in which tests put mistakes."""

from textwrap import indent

TASK = """\
import functools
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import relay


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.tensor(index % 3)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.second(F.relu(self.first(inputs)))


class Task(relay.Task):
    width = 8
    global_batch_size = 8

    def datasets(self, folder):
        return Numbers(), Numbers()

    def model(self):
        return Network()

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""
# Its places, by name: statements, the forward pass's expression, and where its class has room for more.
PLACES = {
    "samples": "        return torch.full((4,), float(index)), torch.tensor(index % 3)\n",
    "layers": "        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)\n",
    "forward": "self.second(F.relu(self.first(inputs)))",
    "model": "        return Network()\n",
    "loss": "        return F.cross_entropy(outputs, batch[1])\n",
    "optimizer": "        return torch.optim.SGD(parameters, self.learning_rate)\n",
    "more": "    width = 8\n",
}


def edited(**codes: str) -> str:
    """The task with other code in these places, or more in its class."""
    text = TASK
    for name, code in codes.items():
        place = PLACES[name]
        assert text.count(place) == 1, name
        new = code if name == "forward" else indent(f"{code.rstrip()}\n", " " * 8)
        text = text.replace(place, f"{place}\n{indent(code, '    ')}\n" if name == "more" else new)
    return text
