"""A regression on a table in a Parquet file, which pandas reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import TensorDataset

import relay


class Task(relay.Task):
    """The price of a house by its size, its rooms and its age, and two noisy columns."""

    unit = "rows"
    global_batch_size, learning_rate, epochs = 32, 3e-3, 5
    width, rows, test_rows = 32, 512, 128

    def prepare(self, folder: Path) -> None:
        generator = np.random.default_rng(0)
        columns = {name: generator.random(self.rows + self.test_rows) for name in ("size", "rooms", "age", "a", "b")}
        table = pd.DataFrame(columns).astype("float32")
        table["price"] = 3 * table["size"] + table["rooms"] * table["size"] - 0.5 * table["age"]
        table.to_parquet(folder / "houses.parquet")

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        table = torch.from_numpy(pd.read_parquet(folder / "houses.parquet").to_numpy(copy=True))
        return tuple(TensorDataset(part[:, :-1], part[:, -1:]) for part in table.split([self.rows, self.test_rows]))

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.LayerNorm(5), nn.Linear(5, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU(),
            nn.Linear(self.width, 1),
        )  # fmt: skip

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return nn.functional.smooth_l1_loss(outputs, batch[1])

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, self.learning_rate)
