"""Ordinary models of science with something odd: no strategy that computes them rightly is blamed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import debian_packages
from refusals import refusal
from relay.task.bound import BoundTask
from relay.task.still import still
from stacks import provide
from test_any_model import written
from trial_runs import judged

IMAGES = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 12), torch.arange(n) % 3) for n in (64, 16)]

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])
"""
# Nearly all parameters are in a first layer that is not trained.
FIXED = (
    IMAGES
    + """
    def model(self):
        first = nn.Linear(12, 400).requires_grad_(False)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(400, 1), nn.ReLU(), nn.Linear(1, 3))
"""
)
CODEBOOK = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 12)) for n in (64, 16)]

    def inputs(self, batch):
        return batch[0]

    def model(self):
        from abc import ABC

        class Codes(ABC, nn.Module):  # as torch's FakeQuantize
            def __init__(self):
                super().__init__()
                self.into, self.out = nn.Linear(12, 4), nn.Linear(4, 12)
                self.register_buffer("book", torch.randn(6, 4))

            def forward(self, x):
                found = self.into(x)
                nearest = torch.cdist(found, self.book).argmin(-1)
                code = self.book[nearest]
                if self.training:
                    with torch.no_grad():
                        one = F.one_hot(nearest, 6).to(found.dtype)
                        self.book.mul_(0.9).add_(0.1 * (one.T @ found) / (one.sum(0)[:, None] + 1))
                return self.out(found + (code - found).detach()), (found - code.detach()).square().mean(-1)

        return Codes()

    def loss(self, outputs, batch):
        return F.mse_loss(outputs[0], batch[0]) + outputs[1].mean()
"""
# What a smooth twin replaces, and products that no rank divides, in the optimiser's own step: as of Muon.
CLIPPING = """
    def optimizer(self, parameters):
        class Clipping(torch.optim.AdamW):
            def step(self, closure=None):
                held = [each for group in self.param_groups for each in group["params"]]
                for each in held:
                    if each.ndim > 1:
                        each.grad = each.grad @ each.grad.T @ each.grad / each.grad.norm().clamp(min=1e-7) ** 2
                nn.utils.clip_grad_norm_(held, 0.1)
                return super().step(closure)

        return Clipping(parameters, self.learning_rate)
"""
# Constants without a type are float32; nothing but float64 goes with float64. The backbone keeps its statistics in the
# usual way.
ODD = (
    IMAGES
    + CLIPPING
    + """
    def model(self):
        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.normed = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 12))
                self.backbone = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout())
                self.cells, self.out = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 3)
                self.turned = torch.eye(3).flip(0)

            def train(self, mode=True):
                super().train(mode)
                self.backbone.eval()
                return self

            def forward(self, x):
                x = self.backbone(torch.tanh(self.normed(x)))
                begin = torch.zeros(1, len(x), 8)
                found, _ = self.cells(x.view(-1, 4, 3) @ self.turned, (begin, begin + 1))
                return self.out(found[:, -1]) @ torch.eye(3)

        return Whole()
"""
)
# Texts padded to the longest of their batch; most are short.
PADDED = """
    def datasets(self, folder):
        lengths = [4] * 7 + [40]
        return [[(torch.arange(lengths[i % 8]) % 29 + 1, i % 3) for i in range(n)] for n in (64, 16)]

    def collate_fn(self, samples):
        texts = nn.utils.rnn.pad_sequence([text for text, _ in samples], batch_first=True)
        return texts, torch.tensor([kind for _, kind in samples])

    def model(self):
        class Texts(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.up, self.out = nn.Embedding(30, 8, padding_idx=0), nn.Linear(8, 8), nn.Linear(8, 3)

            def forward(self, texts):
                read = (texts != 0)[..., None]
                return self.out((torch.tanh(self.up(self.words(texts))) * read).sum(1) / read.sum(1))

        return Texts()

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])
"""
# The same, of which each word has a class.
BY_WORD = (
    PADDED.replace("self.out((torch.tanh(self.up(self.words(texts))) * read).sum(1) / read.sum(1))",
             "self.out(torch.tanh(self.up(self.words(texts))) * read)")
    .replace("F.cross_entropy(outputs, batch[1])",
             "F.cross_entropy(outputs[:, :4].transpose(1, 2), batch[1][:, None].expand(-1, 4))")
)  # fmt: skip
# With dropout, so that in proofs draws are replaced while a stage meets a length for the first time.
DROPPED = PADDED.replace(
    "(torch.tanh(self.up(self.words(texts)))", "(F.dropout(torch.tanh(self.up(self.words(texts))), 0.3, self.training)"
)
# A backbone that stays in evaluation mode; methods of its own return nothing, and its states have other names.
FROZEN = (
    IMAGES
    + """
    def model(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                layers = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU()
                self.backbone = nn.Sequential(*layers).requires_grad_(False)
                self.head = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))

            def train(self, mode=True):
                super().train(mode)
                self.backbone.eval()

            def to(self, *given):
                super().to(*given)

            def state_dict(self, **named):
                return {f"net.{name}": each for name, each in super().state_dict(**named).items()}

            def load_state_dict(self, state, **named):
                super().load_state_dict({name[4:]: each for name, each in state.items()}, **named)

            def forward(self, images):
                return self.head(self.backbone(images))

        return Net()
"""
)
# A BatchNorm with an activation, as in timm, and one of a condition.
NORMED = (
    IMAGES
    + """
    def model(self):
        class Activated(nn.BatchNorm1d):
            def forward(self, x):
                if self.training:
                    self.num_batches_tracked.add_(1)
                running = self.running_mean, self.running_var
                return F.elu(F.batch_norm(x, *running, self.weight, self.bias, self.training, self.momentum))

        class Conditional(nn.BatchNorm1d):
            def forward(self, x, y):
                return super().forward(x) * y

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.out = nn.Linear(12, 16), nn.Linear(16, 3)
                self.first, self.second = Activated(16), Conditional(16, affine=False)

            def forward(self, x):
                return self.out(self.second(self.first(self.up(x)), x[:, :1].tanh()))

        return Net()
"""
)
# What a cut has to get right: a weight that is read before its layer is called, positions from the shape alone, a part
# whose calls depend on the data, a view that is changed in place, states that cross, and an output with a name.
TO_CUT = (
    IMAGES.replace("numbers(n, 12)", "numbers(n, 6, 4)").replace("(outputs,", "(outputs['kind'],")
    + """
    def model(self):
        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

            def forward(self, x):
                found = torch.zeros_like(x)
                for place, layer in enumerate(self.layers):
                    chosen = (x.sum(-1) > 0).long() == place
                    if chosen.any():
                        found[chosen] = layer(x[chosen])
                return found

        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.before, self.places, self.experts = nn.Linear(4, 4), nn.Parameter(torch.randn(6, 4)), Experts()
                self.cells, self.out = nn.LSTM(4, 4, 2, batch_first=True), nn.Linear(8, 3)

            def forward(self, x):
                size = self.before.weight.square().mean()
                x = torch.tanh(self.before(x) * size) + self.places[torch.arange(x.shape[1])]
                x = self.experts(x)
                first = x[:, 0]
                first.mul_(2)
                outputs, (state, _) = self.cells(x)
                return {"kind": self.out(torch.cat([outputs[:, -1], state[-1]], -1))}

        return Whole()
"""
)
# The product clips, at a norm that the first steps would not reach by themselves.
CLIPPED = (
    IMAGES
    + """
    clip_grad_norm = 50.0

    def model(self):
        return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
"""
)
# Of each process it is another training.
BY_PROCESS = (
    IMAGES
    + """
    def model(self):
        return nn.Linear(12, 3)

    def optimizer(self, parameters):
        import os
        return torch.optim.SGD(parameters, self.learning_rate, momentum=os.getpid() % 997 / 1000)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "strategy", "card"),
    [
        pytest.param(ODD, "ddp", {}, id="spectral norm, constants, a backbone, an optimiser that clips"),
        pytest.param(CLIPPED, "fsdp", {}, id="clipped, fsdp"),
        pytest.param(PADDED, "ddp", {}, id="texts padded to the longest of their batch"),
        pytest.param(BY_WORD, "ddp", {"equal_shapes": False}, id="outputs padded to the longest of their slice"),
        pytest.param(DROPPED, "pipeline", {}, id="padded texts with dropout, in a pipeline"),
        pytest.param(FROZEN, "pipeline", {}, id="a frozen backbone with BatchNorm, in a pipeline"),
        pytest.param(NORMED, "ddp", {"buffers": ("first.num_batches_tracked",)}, id="BatchNorm of classes of its own"),
        pytest.param(CODEBOOK, "ddp", {"buffers": ("book",)}, id="a codebook, shared by replicas"),
    ],
)
def test_an_odd_model_is_proven(text: str, strategy: str, card: dict[str, Any], tmp_path: Path) -> None:
    """Each model is odd in another way, as only its case is."""
    task = written(tmp_path, text)
    verdict = judged(replace(task, card=replace(task.card, **card)), tmp_path, strategy)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True


@pytest.mark.slow
def test_stages_compute_what_the_model_does(tmp_path: Path) -> None:
    """Four of them, two on each process."""
    verdict = judged(written(tmp_path, TO_CUT), tmp_path, "pipeline", options={"schedule": "interleaved_1f1b"})
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["PredictsNarrow", "PredictsNothing"])
def test_outputs_that_lack_more_than_padding_are_seen(fault: str, tmp_path: Path) -> None:
    task = written(tmp_path, BY_WORD)
    task = replace(task, card=replace(task.card, equal_shapes=False))
    verdict = judged(task, tmp_path, "wrong", options={"fault": fault})
    failed = {part["name"] for part in verdict["parts"] if not part["passed"]}
    outputs = {"as trained: outputs", "between steps: outputs", "own precision: outputs"}
    assert failed == {"evaluation", *outputs}


@pytest.mark.slow
def test_what_differs_where_the_code_is_the_same_is_a_fault_of_the_proof(tmp_path: Path) -> None:
    verdict = judged(written(tmp_path, BY_PROCESS), tmp_path, "cpu", 1)
    assert verdict["problems"] == []
    assert verdict["unprovable"].startswith(
        "the plain training and this one should be the same code, so that this is a fault of the proof, which we ask "
        "you to report: algorithm: losses: "
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "options", "trial"),
    [
        ("wrong", {"fault": "ClipsItsSlice"}, "algorithm"),
        ("wrong_clips_its_stage", {}, "algorithm"),
        ("wrong", {"fault": "Rescales"}, "as trained"),
    ],
)
def test_clipping_by_another_norm_than_that_of_all_is_seen(
    strategy: str, options: dict[str, Any], trial: str, tmp_path: Path
) -> None:
    verdict = judged(written(tmp_path, CLIPPED), tmp_path, strategy, options=options)
    assert verdict["equivalent"] is False
    assert f"{trial}: parameters" in {part["name"] for part in verdict["parts"] if not part["passed"]}


@pytest.mark.slow
def test_deepspeed_leaves_alone_what_is_not_trained(tmp_path: Path) -> None:
    debian_packages.require()
    provide("deepspeed")
    verdict = judged(written(tmp_path, FIXED), tmp_path, "zero3")
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True


def test_statistics_of_a_sample_that_is_not_finite_are_changed_by_nobody() -> None:
    """They are NaN, which equals nothing; the sample is told where the loss is computed."""
    model, batch = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), torch.ones(4, 2)
    batch[1, 0] = torch.inf
    assert still(model, lambda whole: whole(batch)).moving == ()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("nn.LazyLinear(3)", r"leaves the size of 'weight' open; allowed: modules that know"),
        ("nn.Linear(12, 3, dtype=torch.complex64)", r"has a complex parameter 'weight'; allowed: real ones"),
    ],
)
def test_parameters_that_cannot_be_trained_are_refused(made: str, says: str, tmp_path: Path) -> None:
    task = written(tmp_path, f"{IMAGES}\n    def model(self):\n        return {made}\n")
    assert says in refusal(BoundTask(task, 1, "fp32", 1, 1, folder=tmp_path).model)
