"""Dict batches, and a model that computes its loss itself and returns it beside its outputs, as Hugging Face's do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import relay


@dataclass
class Output:
    """What the model returns."""

    loss: torch.Tensor
    logits: torch.Tensor


class Classifier(nn.Module):
    """(N, features) to three classes, by one matrix that is used twice."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, features)
        self.again = nn.Linear(features, features)
        self.again.weight = self.first.weight
        self.head = nn.Linear(features, 3)

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> Output:
        logits = self.head(self.again(self.first(points).tanh()).tanh())
        return Output(F.cross_entropy(logits, labels), logits)


class Points(Dataset[Any]):
    def __init__(self, count: int, features: int, seed: int) -> None:
        self.points = torch.randn(count, features, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Any]:
        point = self.points[index]
        return {"points": point, "labels": int(point[:3].argmax()), "unused_by_the_model": index}


class Task(relay.Task):
    global_batch_size, learning_rate = 16, 0.1
    features, train_count, test_count = 6, 50, 21

    def datasets(self, folder: Path) -> tuple[Points, Points]:
        return Points(self.train_count, self.features, 1), Points(self.test_count, self.features, 2)

    def model(self) -> nn.Module:
        return Classifier(self.features)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate)

    def metrics(self, outputs: Output, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (outputs.logits.argmax(-1) == batch["labels"]).double().mean()}
