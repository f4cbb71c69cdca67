"""A mistake in one late sample, which no look at a task has seen: told with its number, and never blamed on another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chain_runs import Bench
from own_tasks import spec
from relay.base.errors import UserError
from relay.task.bound import BoundTask
from relay.task.data import Mapped, Streamed
from relay.task.split import Chosen, Split

pytest_plugins = ["chain_runs"]

CPU = torch.device("cpu")
TASK = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import relay


class Points(Dataset):
    def __init__(self, count, late):
        self.count, self.late = count, late

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        point = torch.full((4,), index / self.count)
        if index == self.late:
            LATE
        return point, index % 3


class Task(relay.Task):
    global_batch_size, learning_rate = 16, 0.01

    def datasets(self, folder):
        return Points(1000, TRAIN), Points(40, None)

    def model(self):
        return nn.Linear(4, 3)

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""
NAN = "point[2] = float('nan')"
BROKEN = "raise ValueError('broken file')"
SHORT = "point = point[:3]"
LATE = 77
FIRST = Chosen(torch.tensor([3, LATE, 5, 1]))


def written(folder: Path, late: str, train: int = LATE) -> Path:
    """The task's file, with a mistake in these samples."""
    file = folder / "points.py"
    text = TASK.replace("LATE", late).replace("TRAIN", str(train))
    file.write_text(text)
    return file


def split_of(file: Path) -> Split:
    return BoundTask(spec(str(file)), 5, "fp32", 10, 5, folder=file.parent).split("train")


def line_of(file: Path, text: str) -> int:
    """The number of the line with this text."""
    return next(number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line)


# What the sample does, what is told of it, and in which line of the file.
MISTAKES = {
    "an error": (BROKEN, "sample 77 of the training set: ValueError: broken file", BROKEN),
    "another shape": (
        SHORT,
        "the samples make no batch (sample 77 of the training set has the shape [3], sample 3 [4]); allowed: tensors",
        "def datasets",
    ),
}


@pytest.mark.parametrize(("mistake", "workers"), [("an error", 0), ("another shape", 1)])
def test_a_late_sample_is_told_with_its_number_file_and_line(mistake: str, workers: int, tmp_path: Path) -> None:
    """Wherever it is read: for proofs, and by the loader's processes."""
    late, told, line = MISTAKES[mistake]
    split = split_of(written(tmp_path, late))
    ways = [Streamed(split, CPU, workers)] if workers else [Mapped(split, CPU), Streamed(split, CPU, 0)]
    for way in ways:
        with pytest.raises(UserError) as raised:
            list(way.batches(iter([FIRST])))
        place = f"{tmp_path}/points.py:{line_of(tmp_path / 'points.py', line)}: "
        assert str(raised.value).startswith(place + told)
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_run_names_the_sample_that_made_its_loss_nan(bench: Bench, tmp_path: Path) -> None:
    processes = {"launcher": "torchrun", "devices_per_node": 2, "strategy": "ddp"}
    chain = bench.chain("results", spec(str(written(tmp_path, NAN))), total_steps=62, **processes)
    ended = chain.forked()
    assert ended.status == 1
    told = chain.fault()["error"]
    assert told.startswith("the training loss of step ")
    assert " is nan, because batch[0] is nan in sample 77 of the training set; mend the data" in told
    assert "diverged" not in told
    assert chain.fault()["mistake"] is True
