"""The gate with models of one's own: what it proves of each, and that it blames nothing wrong."""

from pathlib import Path
from typing import Any

import pytest

from own_tasks import spec
from relay.card.look import Data, look
from relay.equivalence.reference import unprovable
from relay.equivalence.trial_task import KEPT, TrialData
from trial_runs import CPU, gate_of, judged

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
# What it has unless its own text says otherwise.
NUMBERS = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 12), torch.arange(n) % 3) for n in (128, 16)]

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])
"""
# As in Hugging Face's models: a norm that computes in float32, a matrix that takes it, and a loss of float32.
LOWERED = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 8), torch.arange(n) % 3) for n in (128, 16)]

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
# It autocasts by itself, and its loss reads the parameters, of which a process may have parts.
AUTOCASTING = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 24), torch.arange(n) % 5) for n in (128, 16)]

    def model(self):
        class Net(nn.Sequential):
            def forward(self, x):
                with torch.autocast(x.device.type, torch.bfloat16):
                    return super().forward(x)

        self.net = Net(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 5))
        return self.net

    def loss(self, outputs, batch):
        penalty = sum(each.pow(2).sum() + each.norm() for each in self.net.parameters())
        return F.cross_entropy(outputs, batch[1]) + 0.01 * penalty
"""
# Most of its work is that of its weights, and not of its samples.
MADE_WEIGHTS = """
    def model(self):
        class Adapted(nn.Linear):
            def __init__(self, width):
                super().__init__(width, width)
                self.down, self.up = (nn.Parameter(0.1 * numbers(width, 64)) for _ in range(2))

            def forward(self, x):
                return F.linear(x, self.weight + self.up @ self.down.T, self.bias)

        return nn.Sequential(Adapted(12), nn.Tanh(), Adapted(12), nn.Tanh(), nn.Linear(12, 3))
"""
# Its loss calls the model again, for a penalty on the gradients of its inputs.
CALLED_AGAIN = """
    def model(self):
        self.net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
        return self.net

    def loss(self, outputs, batch):
        x = batch[0].detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self.net(x).logsumexp(1).sum(), x, create_graph=True)
        return F.cross_entropy(outputs, batch[1]) + slope.square().sum(1).mean()
"""
# The same by torch.func.
BY_FUNC = (
    CALLED_AGAIN.partition("    def loss")[0]
    + """
    def loss(self, outputs, batch):
        slopes = torch.func.vmap(torch.func.grad(lambda one: self.net(one).logsumexp(0)))(batch[0])
        return F.cross_entropy(outputs, batch[1]) + slopes.square().sum(1).mean()
"""
)
# Its penalty is on the gradients of the model's outputs alone.
OF_OUTPUTS = CALLED_AGAIN.replace("x = batch[0].detach()", "x = outputs if outputs.requires_grad else outputs.detach()")
OF_OUTPUTS = OF_OUTPUTS.replace(".requires_grad_()", "").replace(
    "outputs.detach()", "outputs.detach().requires_grad_()"
)
OF_OUTPUTS = OF_OUTPUTS.replace("self.net(x).logsumexp(1)", "x.logsumexp(1)")
# Its forward pass takes gradients where it trains, as for forces; and a penalty that is no mean.
FORCES = """
    def model(self):
        class Forces(nn.Linear):
            def forward(self, x):
                energy = super().forward(x).square().sum(1)
                if self.training:
                    torch.autograd.grad(energy.sum(), self.weight, create_graph=True)
                return torch.stack([energy, 2 * energy, -energy], 1)

        return Forces(12, 3)
"""
PENALISED = f"""{FORCES}
    def loss(self, outputs, batch):
        penalty = outputs.var() if torch.is_grad_enabled() else 0.0
        return F.cross_entropy(outputs, batch[1]) + penalty
"""
# It autocasts only where it evaluates.
EVALUATING = AUTOCASTING.replace("torch.bfloat16):", "torch.bfloat16, enabled=not self.training):")
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
    file.write_text(HEAD + NUMBERS + text)
    return spec(str(file))


AUTOCASTS = "the model or the loss computes in bf16 by itself: limits are those of it"


@pytest.mark.parametrize(
    ("text", "strategy", "note"),
    [
        pytest.param(LOWERED, "fsdp", KEPT, id="computes in float32 by itself"),
        pytest.param(AUTOCASTING, "tensor_parallel", AUTOCASTS, id="autocasts by itself, with a penalty on weights"),
        pytest.param(AUTOCASTING, "fsdp", AUTOCASTS, id="the same, sharded"),
        pytest.param(EVALUATING, "tensor_parallel", "", id="autocasts where it evaluates"),
        pytest.param(MADE_WEIGHTS, "ddp", "", id="makes its weights in each pass"),
    ],
)
def test_a_right_training_is_proven(text: str, strategy: str, note: str, tmp_path: Path) -> None:
    options = {"accumulation": 4} if strategy == "ddp" else {}
    verdict = judged(written(tmp_path, text), tmp_path, strategy, own_batches=[64], options=options)
    assert (verdict["problems"], verdict["own_batches"][0]["problems"]) == ([], [])
    assert verdict["equivalent"] is True
    assert all(part["figure"] <= 1e-12 for part in verdict["parts"] if part["limit"] == 1e-9)
    assert note in (*verdict["notes"], "")


@pytest.mark.parametrize(("text", "through"), [(CALLED_AGAIN, True), (BY_FUNC, True), (OF_OUTPUTS, False)])
def test_a_look_tells_whether_a_loss_takes_gradients_through_the_model(
    text: str, through: bool, tmp_path: Path
) -> None:
    card = look("again", written(tmp_path, text).file, {}, Data(datasets=tmp_path)).task.card
    assert (card.mean_difference, card.unrepeatable, card.differentiates) == (0.0, "", through)


@pytest.mark.parametrize(("text", "is_mean"), [(FORCES, True), (PENALISED, False)], ids=["forces", "a penalty"])
def test_a_loss_is_looked_at_with_gradients(text: str, is_mean: bool, tmp_path: Path) -> None:
    found = look("forces", written(tmp_path, text).file, {}, Data(datasets=tmp_path))
    assert not any("cannot be seen" in each for each in found.warnings)
    assert (found.task.card.mean_difference == 0) is is_mean
    assert found.task.card.differentiates
    why = unprovable(TrialData(gate_of(found.task, tmp_path / "data"), tmp_path / "data", CPU))
    assert (why is None) is is_mean


def test_a_wrong_training_is_found_where_the_model_autocasts(tmp_path: Path) -> None:
    verdict = judged(written(tmp_path, AUTOCASTING), tmp_path, "wrong_beyond_eight", own_batches=[64])
    (own,) = verdict["own_batches"]
    failed = {part["name"] for part in own["parts"] if not part["passed"]}
    assert {"algorithm: losses", "own precision: losses", "gradient: parameters"} <= failed


def test_a_loss_that_is_no_mean_is_not_proven_and_the_verdict_says_so(tmp_path: Path) -> None:
    """It asks for float32 nowhere."""
    task = written(tmp_path, SEGMENTATION)
    verdict = judged(task, tmp_path, "ddp")
    assert verdict["equivalent"] is False
    assert verdict["problems"] == []
    assert verdict["unprovable"].startswith("the loss is no mean over samples: that of a batch is ")
    assert not TrialData(gate_of(task, tmp_path / "again"), tmp_path / "again", CPU).lowers
