"""An LSTM over sequences of differing lengths: which of two kinds is each of them?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import relay


class Waves(Dataset[Any]):
    """Sequences float32 (length, 2), each of its own length, and their class: how fast the wave is."""

    def __init__(self, count: int, first: int) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.first + index)
        length, kind = int(torch.randint(5, 20, (), generator=generator)), index % 2
        times = torch.arange(length) * (0.3 + 0.4 * kind)
        noise = 0.1 * torch.randn(length, 2, generator=generator)
        return torch.stack([times.sin(), times.cos()], 1) + noise, kind


class LastState(nn.Module):
    """The class of a padded sequence from the state at its own end."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, 2)

    def forward(self, sequences: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(sequences)
        last = states.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2]))
        return self.head(last.squeeze(1))


class Task(relay.Task):
    unit = "sequences"
    global_batch_size, learning_rate, epochs = 16, 1e-2, 2
    width, layers, dropout = 16, 2, 0.1
    train_count, test_count = 128, 32

    def datasets(self, folder: Path) -> tuple[Waves, Waves]:
        return Waves(self.train_count, 0), Waves(self.test_count, 10**6)

    def collate_fn(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        sequences, kinds = zip(*samples, strict=True)
        lengths = torch.tensor([len(each) for each in sequences])
        padded = pad_sequence(list(sequences), batch_first=True)
        return {"sequences": padded, "lengths": lengths, "kinds": torch.tensor(kinds)}

    def model(self) -> nn.Module:
        return LastState(self.width, self.layers, self.dropout)

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(outputs, batch["kinds"])

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(parameters, self.learning_rate)

    def metrics(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (outputs.argmax(-1) == batch["kinds"]).double().mean()}
