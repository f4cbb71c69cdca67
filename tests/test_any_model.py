"""The gate with models of one's own: what it proves of each, and that it blames nothing wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.equivalence.trial_task import KEPT
from trial_runs import gate_of, spec_of, verdict_of

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


def numbers(count, *shape):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


class Task(relay.Task):
    global_batch_size, learning_rate, epochs = 8, 0.01, 1

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate, momentum=0.9)
"""
REGRESSION = """
    def loss(self, outputs, batch):
        return F.mse_loss(outputs, batch[-1])
"""
ENCODER = (
    """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 5, 8), numbers(n, 3)) for n in (64, 16)]

    def model(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, activation=F.relu, batch_first=True)
        return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(40, 3))
"""
    + REGRESSION
)
# As in Hugging Face's models: a norm that computes in float32, a matrix that takes it, and a loss of float32.
LOWERED = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 8), torch.arange(n) % 3) for n in (64, 16)]

    def model(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(8, 8)

            def forward(self, x):
                found = x.to(torch.float32)
                found = found * (found.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
                return self.inner(found.type_as(x)) + torch.softmax(x, -1, dtype=torch.float32)

        return nn.Sequential(Block(), Block(), Block(), nn.Linear(8, 3))

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs.float(), batch[1])
"""
SEGMENTATION = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 1, 6, 6), (numbers(n, 1, 6, 6) > 0).float()) for n in (64, 16)]

    def model(self):
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 1, 1))

    def loss(self, outputs, batch):
        p, truth, over = outputs.sigmoid(), batch[1], (0, 1, 2, 3)
        return 1 - (2 * ((p * truth).sum(over) + 1) / (p.sum(over) + truth.sum(over) + 1)).mean()
"""
TASKS = {"an encoder with dropout": (ENCODER, "ddp"), "a model that computes in float32 by itself": (LOWERED, "fsdp")}


def written(folder: Path, text: str) -> Any:
    """The specification of a task's file with this text."""
    file = folder / f"own_{abs(hash(text))}.py"
    file.write_text(HEAD + text)
    return spec_of(file.stem, str(file))


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_right_training_is_proven(name: str, tmp_path: Path) -> None:
    text, strategy = TASKS[name]
    run = gate_of(written(tmp_path, text), tmp_path / "data", strategy, 2, batch=8)
    verdict = verdict_of(run, tmp_path / "data", tmp_path)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    assert all(part["figure"] <= 1e-12 for part in verdict["parts"] if part["limit"] == 1e-9)
    assert (KEPT in verdict["notes"]) is (text == LOWERED)


@pytest.mark.slow
def test_a_loss_that_is_no_mean_is_not_proven_and_the_verdict_says_so(tmp_path: Path) -> None:
    run = gate_of(written(tmp_path, SEGMENTATION), tmp_path / "data", "ddp", 2, batch=8)
    verdict = verdict_of(run, tmp_path / "data", tmp_path)
    assert verdict["equivalent"] is False
    assert verdict["problems"] == []
    assert verdict["unprovable"].startswith("the loss is no mean over samples: that of a batch is ")
