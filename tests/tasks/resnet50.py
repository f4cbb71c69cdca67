"""torchvision's ResNet-50, as it is, on made-up images of 64 × 64 pixels."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from torchvision import models

import relay


class Task(relay.Task):
    unit = "images"
    global_batch_size, learning_rate, epochs = 8, 0.001, 1
    classes, side, base_width = 10, 64, 64
    train_count, test_count = 32, 16
    small = {"base_width": 4}  # noqa: RUF012

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        return self._made(self.train_count, 1), self._made(self.test_count, 2)

    def _made(self, count: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(256, (count, 3, self.side, self.side), generator=generator, dtype=torch.uint8)
        return TensorDataset(images, torch.randint(self.classes, (count,), generator=generator))

    def transform(self, batch: Any) -> Any:
        return batch[0].float() / 128 - 1, batch[1]

    def model(self) -> nn.Module:
        return models.resnet50(num_classes=self.classes, width_per_group=self.base_width)

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate, momentum=0.9, weight_decay=1e-4)

    def metrics(self, outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
        return {"accuracy": (outputs.argmax(-1) == batch[1]).double().mean()}
