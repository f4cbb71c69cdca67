"""The task NAME: which of three kinds is a noisy wave?

It runs as it is: `snakemake --profile profiles/local --configfile NAME.yaml`. Replace its parts by your own, one after
the other; `snakemake card --profile profiles/local --configfile NAME.yaml` says at once what is wrong.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import relay


class Waves(Dataset[Any]):
    """Any map-style dataset: `len(dataset)` and `dataset[index]`, which gives tensors or numbers.

    Random numbers of torch, numpy and Python are allowed here. They are seeded for each sample and epoch.
    """

    def __init__(self, waves: torch.Tensor, kinds: torch.Tensor, *, noise: float) -> None:
        self.waves, self.kinds, self.noise = waves, kinds, noise

    def __len__(self) -> int:
        return len(self.waves)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        wave = self.waves[index]
        return wave + self.noise * torch.randn(wave.shape), self.kinds[index]


class Network(nn.Module):
    """Any module: functional calls, skip connections, several inputs and outputs. A word about GPUs is not needed."""

    def __init__(self, width: int, kinds: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 5, padding=2)
        self.second = nn.Conv1d(width, width, 5, padding=2)
        self.norm = nn.GroupNorm(2, width)
        self.out = nn.Linear(width, kinds)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        """(N, 1, length) to (N, kinds)."""
        x = F.relu(self.first(waves))
        x = x + F.relu(self.norm(self.second(x)))
        return self.out(x.mean(-1))


class Task(relay.Task):
    # What a speed counts, and how long the training is. The learning rate is the one for this global batch.
    unit = "waves"
    global_batch_size, learning_rate, epochs = 32, 3e-3, 4
    schedule = {"kind": "cosine"}  # or {"kind": "constant"}, {"kind": "step", "every_epochs": 2, "gamma": 0.5}

    # Every further number, text, True or False is an option: the config may set it, `task_options: {width: [8, 16]}`.
    width, length, kinds = 8, 64, 3
    train_count, test_count = 512, 128

    def prepare(self, folder: Path) -> None:
        """Once, on the login node, into an empty folder: download, unpack, convert. May be left out.

        Increase `data_version = 1` in the class when a package that this one uses makes something else.
        """
        generator = torch.Generator().manual_seed(0)
        count = self.train_count + self.test_count
        kinds = torch.randint(self.kinds, (count,), generator=generator)
        phases = 6.28 * torch.rand(count, 1, 1, generator=generator)
        times = torch.linspace(0, 6.28, self.length)
        torch.save(
            {"waves": torch.sin((1.0 + kinds[:, None, None]) * times + phases), "kinds": kinds}, folder / "waves.pt"
        )

    def datasets(self, folder: Path) -> tuple[Waves, Waves]:
        """The training and the test set, from the folder that `prepare` has filled. Jobs have no network."""
        made = torch.load(folder / "waves.pt", weights_only=True)
        waves, kinds, end = made["waves"], made["kinds"], self.train_count
        return Waves(waves[:end], kinds[:end], noise=0.3), Waves(waves[end:], kinds[end:], noise=0.0)

    def model(self) -> nn.Module:
        return Network(self.width, self.kinds)

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        """A mean over the samples. The model gets all of a batch but its last part, unless you write `inputs`."""
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, self.learning_rate)

    def metrics(self, outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
        """What else is measured of the test set, as means over the samples. May be left out."""
        return {"accuracy": (outputs.argmax(-1) == batch[1]).double().mean()}
