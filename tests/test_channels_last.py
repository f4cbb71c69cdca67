"""Pictures with channels last: the default where a model computes the same so, and where it is usually faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plans import only, planned
from relay.card.look import Data, look

CPU: dict[str, Any] = {"strategy": "cpu"}
PIPELINE: dict[str, Any] = {"strategy": "pipeline", "devices_per_node": 2}
PARTED = {"schedule": "interleaved_zero_bubble", "micro_batches": 4}


@pytest.mark.parametrize(
    ("comparison", "config", "last"),
    [
        (CPU, {}, True),
        (CPU | {"channels_last": False}, {}, False),
        (CPU, {"task": "resnet18-tiny"}, False),
        (PIPELINE | {"options": PARTED}, {}, False),
        ({"strategy": "single_gpu"}, {"gpus": 1, "device": "cuda"}, False),
        ({"strategy": "single_gpu", "precision": "bf16"}, {"gpus": 1, "device": "cuda"}, True),
    ],
)
def test_what_a_plan_takes_where_nobody_says(comparison: dict[str, Any], config: dict[str, Any], last: bool) -> None:
    run = only(comparison, **{"task": "lenet-digits", **config})
    assert run.computation.channels_last is last


def test_a_model_that_cannot_be_computed_so_is_skipped_with_the_reason() -> None:
    (skip,) = planned(CPU | {"channels_last": True}, task="resnet18-tiny").skipped
    assert skip.reasons == ("channels_last is not for resnet18-tiny: on CPUs its model cannot be computed so",)


OWN = """
import torch, relay
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, {channels}, 3, padding=1), nn.Conv2d({channels}, 16, {kernel}, stride=2)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        x = {between}
        return self.last(F.adaptive_avg_pool2d(self.second(x), 1).flatten(1))

class Task(relay.Task):
    def datasets(self, folder):
        data = TensorDataset(torch.rand(32, 3, 8, 8), torch.arange(32) % 3)
        return data, data
    def model(self):
        return Net()
    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])
    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""
PLAIN = "self.first(x)"


@pytest.mark.parametrize(
    ("channels", "kernel", "between", "last"),
    [
        (16, 1, PLAIN, True),
        (4, 1, PLAIN, False),  # oneDNN would write beyond its memory
        (8, 3, "self.first(x).view(len(x), -1).view(len(x), 8, 8, 8)", False),
        (8, 3, "F.dropout(self.first(x))", None),  # it draws in the order of memory
    ],
)
def test_a_card_says_whether_a_model_computes_the_same_so(
    tmp_path: Path, channels: int, kernel: int, between: str, last: bool | None
) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(channels=channels, kernel=kernel, between=between))
    found = look("mine", str(tmp_path / "mine.py"), {}, Data(datasets=tmp_path / "datasets", prepare=True))
    assert found.task.card.channels_last is last
