"""The gate with models of one's own: what it proves of each, and that it blames nothing wrong."""

from pathlib import Path
from typing import Any

import pytest

from relay.equivalence.trial_task import KEPT, TrialData
from trial_runs import CPU, gate_of, spec_of, verdict_of

pytestmark = pytest.mark.slow
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


def written(folder: Path, text: str) -> Any:
    """The specification of a task's file with this text."""
    file = folder / f"own_{abs(hash(text))}.py"
    file.write_text(HEAD + text)
    return spec_of(file.stem, str(file))


def test_a_right_training_is_proven_whose_model_computes_in_float32_by_itself(tmp_path: Path) -> None:
    run = gate_of(written(tmp_path, LOWERED), tmp_path / "data", "fsdp", 2, batch=8)
    verdict = verdict_of(run, tmp_path / "data", tmp_path)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    assert all(part["figure"] <= 1e-12 for part in verdict["parts"] if part["limit"] == 1e-9)
    assert KEPT in verdict["notes"]


def test_a_loss_that_is_no_mean_is_not_proven_and_the_verdict_says_so(tmp_path: Path) -> None:
    """It asks for float32 nowhere."""
    run = gate_of(written(tmp_path, SEGMENTATION), tmp_path / "data", "ddp", 2, batch=8)
    verdict = verdict_of(run, tmp_path / "data", tmp_path)
    assert verdict["equivalent"] is False
    assert verdict["problems"] == []
    assert verdict["unprovable"].startswith("the loss is no mean over samples: that of a batch is ")
    assert not TrialData(run, tmp_path / "data", CPU).lowers
