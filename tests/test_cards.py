"""What a look sees of tasks: the built-in ones' cards are those of today's code, and further models' are known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from preloaded import spawned
from relay.base.errors import UserError
from relay.card.look import Data, look
from relay.card.words import in_words
from relay.process.ranks import Ranks
from relay.spec.card import Card
from relay.spec.looked import Looked
from relay.spec.tasks import built_in
from short_tasks import at_hand, prepare_at_hand, shipped

TASKS = Path(__file__).parent / "tasks"
# Small, and without a download.
QUICK = ("gpt-moe-tiny", "lenet-digits", "resnet18-tiny")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


def card(name: str, datasets: Path) -> Card:
    return look(name, str(TASKS / f"{name}.py"), {}, Data(datasets=datasets, prepare=True)).task.card


def test_every_built_in_task_has_a_whole_card() -> None:
    for name in built_in():
        known = shipped(name)
        seen = known.task.card
        assert (known.task.name, seen.mean_difference, known.warnings) == (name, 0, ()), name
        assert seen.parameters, name
        assert seen.forward_flops, name
        assert seen.batch, name
        assert seen.cuts or seen.uncuttable, name


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_shipped_card_is_what_is_seen_today(name: str, datasets: Path, tmp_path: Path) -> None:
    """A few random samples stand for public data: but for their number, nothing on a card follows from them."""
    known = shipped(name)
    made = at_hand(known.task, known.dataset)
    if made != known.dataset:
        prepare_at_hand(known.task, made, datasets / known.dataset.directory_name)
    found = look(name, "", {}, Data(datasets=datasets, prepare=made == known.dataset))
    assert found.dataset == replace(made, version=known.dataset.version)
    replace(found, dataset=known.dataset).write(tmp_path / "card.json")
    assert Looked.read(tmp_path / "card.json") == known  # what a shipped card does not say has its default


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_other_shipped_card_is_what_is_seen_today(datasets: Path, tmp_path: Path) -> None:
    """Only this looks at the other built-in tasks."""
    for name in sorted({*built_in()} - {*QUICK}):
        test_a_shipped_card_is_what_is_seen_today(name, datasets, tmp_path)


@pytest.mark.slow
def test_a_u_net(datasets: Path) -> None:
    seen = card("unet", datasets)
    assert (seen.dropout, len(seen.batch_norm), seen.draws, seen.outside) == (("dropout",), 10, (), ())
    assert (seen.random_samples, seen.equal_shapes, seen.mean_difference) == (True, True, 0)
    assert seen.cuts


@pytest.mark.slow
def test_sequences_of_differing_lengths(datasets: Path) -> None:
    seen = card("lstm", datasets)
    assert (seen.equal_shapes, seen.sample_bytes, seen.dropout, seen.outside) == (False, None, ("lstm",), ())


CONTRASTIVE = """\
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.out = nn.Linear(8, 16, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        x = x * (1 + np.random.rand()) + random.random()
        return self.out(F.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0))


class Task(relay.Task):
    def datasets(self, folder):
        tokens = torch.arange(64).view(8, 8) % 16
        return TensorDataset(tokens, tokens[:, 0]), TensorDataset(tokens, tokens[:, 0])

    def model(self):
        return Network()

    def loss(self, outputs, batch):
        own = F.normalize(outputs.mean(1), dim=-1)
        return F.cross_entropy(own @ own.T, torch.arange(len(own)))

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""


def test_what_no_proof_can_repeat_is_seen_and_told(tmp_path: Path) -> None:
    file = tmp_path / "contrast.py"
    file.write_text(CONTRASTIVE)
    found = look("contrast", str(file), {}, Data(datasets=tmp_path))
    seen = found.task.card
    assert seen.mean_difference is None
    assert seen.tied == (("table.weight", "out.weight"),)
    assert seen.outside == ("Python's random", "numpy")
    assert seen.dropout == ("scaled_dot_product_attention",)
    assert not seen.cross_entropy
    told = in_words(found)
    assert "mean over samples" not in told, "what draws outside torch has another loss each time"
    assert "Random numbers from Python's random and numpy" in told
    assert "table.weight and out.weight are one parameter" in told


def test_a_loss_that_is_no_mean_is_seen_and_told(tmp_path: Path) -> None:
    file = tmp_path / "contrast.py"
    file.write_text(CONTRASTIVE.replace(" * (1 + np.random.rand()) + random.random()", ""))
    found = look("contrast", str(file), {}, Data(datasets=tmp_path))
    assert found.task.card.outside == ()
    assert found.task.card.mean_difference is not None
    assert found.task.card.mean_difference > 0.01
    assert "The loss is no mean over samples: a batch's is" in in_words(found)


# Inputs that are missing are counted: a part of a batch may have none.
OF_PRESENT = """\
import torch
from torch import nn
from torch.utils.data import TensorDataset

import relay


class Task(relay.Task):
    def datasets(self, folder):
        present = torch.tensor([1.0, 0, 0, 0, 0, 1, 1, 1])
        data = TensorDataset(torch.arange(8.0)[:, None], present)
        return data, data

    def model(self):
        return nn.Linear(1, 1)

    def loss(self, outputs, batch):
        return (outputs[:, 0] ** 2 * batch[1]).sum() / batch[1].sum()

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""


NUMBERS = """\
import functools
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


@functools.lru_cache
def places(count, device=None):
    return torch.arange(count, device=device) / count


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", 1 + places(4))
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.first(x * self.scale + places(4, x.device))))


class Task(relay.Task):
    calls = 0

    def datasets(self, folder):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(x, torch.arange(64) // 32)
        return data, data

    def model(self):
        if not hasattr(self, "mean"):
            self.mean = torch.ones(4)
        return Network()

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""


def _look_on_a_gpu(_: Ranks, file: Path, card: Path) -> None:
    look("on-gpu", str(file), {}, Data(datasets=file.parent)).write(card)


@pytest.mark.long
def test_a_model_that_needs_a_gpu_is_looked_at_on_one(tmp_path: Path) -> None:
    """No other test looks at a model on a GPU."""
    file, refuses = tmp_path / "on_gpu.py", 'raise RuntimeError("this kernel takes CUDA tensors alone")'
    line = "        return self.out(torch"
    file.write_text(NUMBERS.replace(line, f'        if x.device.type == "cpu":\n            {refuses}\n{line}'))
    with pytest.raises(UserError, match=r"on_gpu\.py:\d+: RuntimeError: this kernel takes CUDA"):
        look("on-gpu", str(file), {}, Data(datasets=tmp_path))
    spawned(_look_on_a_gpu, 1, file, tmp_path / "card.json", gpus=1)
    seen = Looked.read(tmp_path / "card.json").task.card
    assert (seen.parameters, [*(seen.cuts or ())], seen.mean_difference) == (58, ["out"], 0)
    assert (seen.draws, seen.outside, seen.without_gradient) == ((), (), ())


def seen_of(folder: Path, text: str) -> Looked:
    """The card of a task with this text."""
    (folder / "numbers_task.py").write_text(text)
    return look("numbers-task", str(folder / "numbers_task.py"), {}, Data(datasets=folder))


def test_what_a_function_keeps_of_a_look_is_no_tensor_without_data(tmp_path: Path) -> None:
    """Whoever caches a table of positions would get that of the meta device, or torch's fake one."""
    found = seen_of(tmp_path, NUMBERS)
    assert found.warnings == ()
    assert found.task.card.mean_difference == 0


@pytest.mark.slow
@pytest.mark.parametrize(("term", "alone"), [("", True), (" + 0.1 * outputs.square().mean()", False)])
def test_with_a_further_term_a_loss_is_no_cross_entropy(term: str, alone: bool, tmp_path: Path) -> None:
    """Of shards of the classes it would be computed without that term."""
    loss = "F.cross_entropy(outputs, batch[1])"
    assert seen_of(tmp_path, NUMBERS.replace(loss, loss + term)).task.card.cross_entropy is alone


@pytest.mark.parametrize(
    "state",
    [
        NUMBERS.replace("        return F.cross", "        self.calls += 1\n        return self.calls * F.cross"),
        NUMBERS.replace(
            "        return self.out", "        self.first.bias.data += 0.1 * self.training\n        return self.out"
        ),
    ],
    ids=["a counter", "parameters"],
)
def test_a_state_that_is_no_buffer_is_told_as_such(state: str, tmp_path: Path) -> None:
    found = seen_of(tmp_path, state)
    assert "is another one when it is computed again" in found.task.card.unrepeatable
    told = in_words(found)
    assert "The loss of one batch is another one when it is computed again" in told
    assert "mean over samples" not in told


def test_a_part_without_a_finite_loss_is_no_nan_on_the_card(tmp_path: Path) -> None:
    file = tmp_path / "present.py"
    file.write_text(OF_PRESENT)
    found = look("present", str(file), {}, Data(datasets=tmp_path))
    assert found.task.card.mean_difference == math.inf
    assert "that of a part of a batch is not finite" in in_words(found)


BY_PLACE = """torch.optim.AdamW([{"params": parameters[:-1]}, {"params": parameters[-1:], "lr": 0.1}])"""
BY_KIND = """torch.optim.AdamW([
            {"params": [each for each in parameters if each.ndim > 1]},
            {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
        ])"""


@pytest.mark.parametrize(("made", "by_place"), [(BY_PLACE, True), (BY_KIND, False)], ids=["last", "kind"])
def test_an_optimizer_that_groups_by_place_is_seen_and_told(tmp_path: Path, made: str, by_place: bool) -> None:
    file = tmp_path / "grouped.py"
    file.write_text(OF_PRESENT.replace("torch.optim.SGD(parameters, self.learning_rate)", made))
    found = look("grouped", str(file), {}, Data(datasets=tmp_path))
    assert found.task.card.grouped_by_place == by_place
    assert [each.partition(", and")[0] for each in found.warnings] == by_place * [
        f"{file}:20: optimizer() groups parameters by their place in the list"
    ]


CLIPS = """
        class Own(torch.optim.AdamW):
            def step(self, closure=None):
                nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 5.0)
                return super().step(closure)

        return Own(parameters)
"""
BY_TENSOR = """
        class Own(torch.optim.SGD):
            @torch.no_grad()
            def step(self, closure=None):
                for each in self.param_groups[0]["params"]:
                    each.grad *= each.norm() / each.grad.norm()
                return super().step(closure)

        return Own(parameters, self.learning_rate)
"""


@pytest.mark.parametrize(
    ("made", "scope"),
    [
        ("return torch.optim.Adagrad(parameters)", "element"),  # its state is made before its first step
        (BY_TENSOR, "tensor"),
        (CLIPS, "model"),
    ],
)
def test_what_a_step_of_the_optimizer_reads_is_seen_and_told(tmp_path: Path, made: str, scope: str) -> None:
    file = tmp_path / "reads.py"
    text = OF_PRESENT.replace("nn.Linear(1, 1)", "nn.Linear(1, 3)")
    file.write_text(text.replace("return torch.optim.SGD(parameters, self.learning_rate)", made))
    found = look("reads", str(file), {}, Data(datasets=tmp_path))
    assert found.task.card.optimizer_scope == scope
    reads = {"tensor": ["whole tensors"], "model": ["all parameters at once"]}.get(scope, [])
    assert [each for each in reads if f"a step of optimizer()'s reads {each}" in found.warnings[0]] == reads
