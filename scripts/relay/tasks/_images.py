"""Pictures with one class each: kept as uint8 pixels, and normalised by channel in each batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import relay
from relay.datasets import arrays
from relay.datasets.arrays import Arrays
from relay.datasets.statistics import channel_statistics

STATISTICS = "statistics.json"  # mean and deviation of each channel of the training images, scaled to 0 … 1


def save(images_and_labels: Arrays, folder: Path) -> None:
    """Write images uint8 (N, C, H, W) and labels int64 (N,) of both splits, and the statistics of the channels."""
    arrays.save(images_and_labels, folder)
    write_statistics(folder)


def write_statistics(folder: Path) -> None:
    """Write the statistics of the training images that lie in the folder."""
    mean, std = channel_statistics(np.load(folder / "train-inputs.npy", mmap_mode="r"))
    (folder / STATISTICS).write_text(json.dumps({"mean": mean, "std": std}), encoding="utf-8")


class Images(relay.Task):
    """Images of `channels` × `side` × `side` for the model; stored ones are magnified by whole factors."""

    unit = "images"
    channels, side = 3, 32
    classes = 10

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        statistics = json.loads((folder / STATISTICS).read_text(encoding="utf-8"))
        # A tensor: by a number, CUDA would multiply with its reciprocal, and round otherwise than the CPU.
        self.most = torch.full((1, 1, 1), 255.0)
        self.mean, self.std = (torch.tensor(statistics[name]).view(-1, 1, 1) for name in ("mean", "std"))
        train, test = (self._split(folder, name) for name in arrays.SPLITS)
        return train, test

    def _split(self, folder: Path, name: arrays.Split) -> TensorDataset:
        stored, labels = map(torch.from_numpy, arrays.load(folder, name))
        repeats, factor = self.channels // stored.shape[1], self.side // stored.shape[2]
        if repeats > 1 or factor > 1:
            stored = stored.repeat(1, repeats, 1, 1)
            stored = stored.repeat_interleave(factor, -1).repeat_interleave(factor, -2)
        return TensorDataset(stored, labels)

    def transform(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Images float32 (N, C, H, W) with mean 0 and deviation 1 by channel, and labels int64 (N,)."""
        images, labels = batch
        if images.device != self.mean.device:  # once: a copy in every step would wait for the device
            self.most, self.mean, self.std = (each.to(images.device) for each in (self.most, self.mean, self.std))
        return images.float().div_(self.most).sub_(self.mean).div_(self.std), labels

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.cross_entropy(outputs, batch[1])

    def metrics(self, outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
        return {"accuracy": (outputs.argmax(-1) == batch[1]).double().mean()}
