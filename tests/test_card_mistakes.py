"""Users' mistakes in a task's file: each is one line with the file and the line, before anything is queued."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.base.errors import UserError
from relay.card.look import Data, look
from relay.card.words import in_words
from relay.planning.skips import why_unproven
from relay.spec.tasks import Looked

TASK = """\
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import relay


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.tensor(index % 3)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.second(F.relu(self.first(inputs)))


class Task(relay.Task):
    width = 8
    global_batch_size = 8

    def datasets(self, folder):
        return Numbers(), Numbers()

    def model(self):
        return Network()

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""
ITEM = "        return torch.full((4,), float(index)), torch.tensor(index % 3)\n"
LOSS = "        return F.cross_entropy(outputs, batch[1])\n"
MODEL = "        return Network()\n"
OPTIMIZER = "        return torch.optim.SGD(parameters, self.learning_rate)\n"
FORWARD = "self.second(F.relu(self.first(inputs)))"
CLIPPED = """\
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.first.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
"""
COUNTING = """\
        class Counting(torch.optim.SGD):
            def step(self, closure=None):
                {0} = {0} + 1
                for each in self.param_groups[0]["params"]:
                    each.grad /= {0}
                return super().step(closure)

        made = Counting(parameters, self.learning_rate)
        {1} = 0
        return made
"""
HOOKED = """\
        made = torch.optim.SGD(parameters, self.learning_rate)
        made.register_step_post_hook(lambda *_: {})
        return made
"""
SCHEDULER = HOOKED.format("rate.step()").replace(
    "        made.reg",
    "        rate = torch.optim.lr_scheduler.LambdaLR(made, lambda step: step / 10)\n        made.reg",
)
MORE = "    width = 8\n"  # what is put here belongs to the class
METHOD = MORE + "\n    def {}:\n        return {}\n\n"


def looked(folder: Path, text: str, **options: Any) -> Looked:
    """The card of a task whose file has this text."""
    file = folder / f"task{abs(hash(text))}.py"
    file.write_text(text)
    return look("mine", str(file), options, Data(datasets=folder / "datasets", prepare=True))


def changed(old: str, new: str) -> str:
    assert TASK.count(old) == 1
    return TASK.replace(old, new)


def added(text: str) -> str:
    """The task with more in its class."""
    return changed(MORE, f"{MORE}    {text}\n")


def returns(old: str, new: str) -> str:
    """The task whose line `old` is another return."""
    return changed(old, f"        return {new}\n")


# What the user wrote; what the line says; a text in the line of the file that it names.
MISTAKES = {
    "another sample": (
        returns(ITEM, "torch.full((4,), np.random.default_rng().random()), torch.tensor(0)"),
        "sample 0 of the training set is another one when it is read again, with the same seed and epoch",
        "def datasets",
    ),
    "another model each time": (
        changed(
            MODEL,
            "        made, drawn = Network(), np.random.default_rng().random()\n"
            "        made.first.bias.data.fill_(drawn)\n        return made\n",
        ),
        "model() makes another 'first.bias' when it is called again with the same seed",
        "def model",
    ),
    "a gradient that is no number": (
        changed(LOSS, "        return torch.where(outputs > 1e9, outputs / 0, outputs.square()).mean()\n"),
        "is not finite in the first batch, although the loss is; allowed: finite ones",
        "def loss",
    ),
    "an optimizer of other parameters": (
        returns(OPTIMIZER, "torch.optim.SGD(Network().parameters(), self.learning_rate)"),
        "optimizer() holds none of the parameters that it was given; allowed: an optimiser of `parameters`; a",
        "def optimizer",
    ),
    "a scheduler": (
        changed(OPTIMIZER, SCHEDULER),
        "optimizer() makes a scheduler; each step is taken at the rate that the task's scheduler or schedule says; all",
        "def optimizer",
    ),
    "a rate that steps change": (
        changed(OPTIMIZER, HOOKED.format("made.param_groups[0].update(lr=0.5 * made.param_groups[0]['lr'])")),
        "a training step changes the learning rate; each step is taken at the rate that the task's scheduler",
        "def optimizer",
    ),
    "a metric that is no mean": (
        changed(MORE, METHOD.format("metrics(self, outputs, batch)", "{'rmse': outputs.square().mean().sqrt()}")),
        "metrics(): rmse is no mean over samples: of a batch it is ",
        "def metrics",
    ),
    "parameters of the loss": (
        returns(OPTIMIZER, "torch.optim.SGD([*parameters, nn.Parameter(torch.ones(1))], self.learning_rate)"),
        "optimizer() holds 1 parameters that are none of the model's",
        "def optimizer",
    ),
}


READS = changed(MODEL, "        (Path(__file__).parent / 'labels.json').read_text()\n" + MODEL).replace(
    "import random\n", "import random\nfrom pathlib import Path\n"
)


def test_a_file_beside_the_tasks_has_to_be_declared(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text("[]")
    with pytest.raises(UserError, match=r"\.py:\d+: labels.json is missing in jobs, which have a copy of this file"):
        looked(tmp_path, READS)
    with pytest.raises(UserError, match=r"files: '\.\./up.json' is not allowed"):
        looked(tmp_path, READS.replace(MORE, MORE + "    files = ('../up.json',)\n"))


def test_a_declared_file_is_read_and_its_content_makes_the_data(tmp_path: Path) -> None:
    """The look leaves no copy behind that another one would find."""
    prepares = "    def prepare(self, folder):\n        (folder / 'made').touch()\n\n"
    text, versions = READS.replace(MORE, MORE + "    files = ('labels.json',)\n\n" + prepares), set()
    for content in ("[1]", "[2]"):
        (tmp_path / "labels.json").write_text(content)
        known, path = {*sys.modules}, [*sys.path]
        found = looked(tmp_path, text)
        assert not [name for name in {*sys.modules} - known if name.startswith("relay_task")]
        assert sys.path == path
        assert found.warnings == ()
        assert found.task.file == str(*tmp_path.glob("*.py"))
        versions.add(found.dataset.version)
    assert len(versions) == 2


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_place(mistake: str, tmp_path: Path) -> None:
    text, words, line = MISTAKES[mistake]
    with pytest.raises(UserError) as raised:
        looked(tmp_path, text)
    told = str(raised.value)
    assert words in told
    assert "\n" not in told
    assert "task" in told
    place = re.search(r"\.py:(\d+)", told)
    assert place, told
    assert line in text.splitlines()[int(place[1]) - 1]


def test_the_task_without_mistakes_has_a_card(tmp_path: Path) -> None:
    seen = looked(tmp_path, TASK)
    assert seen.warnings == ()
    assert seen.task.card.mean_difference == 0
    assert seen.task.card.cross_entropy
    assert seen.task.card.optimizer_scope == "element"
    assert (seen.dataset.train_count, seen.dataset.test_count) == (16, 16)


OWN_STEP = """\
        class Own(torch.optim.SGD):
            @torch.no_grad()
            def step(self, closure=None):
                given = self.param_groups[0]["params"]
                {}
                return super().step(closure)

        return Own(parameters, self.learning_rate)
"""
BY_TENSOR = "[each.grad.mul_(each.norm() / each.grad.norm()) for each in given]"
WARNINGS = {
    "left out": (
        returns(OPTIMIZER, "torch.optim.SGD([p for p in parameters if len(p) > 3], self.learning_rate)"),
        "leaves out second.weight, second.bias",
    ),
    # `block` is near `blocks`, and used: it is an option.
    "a misspelt attribute": (
        added("global_batchsize, block = 8, 4\n    half = property(lambda self: self.block / 2)"),
        "did you mean 'global_batch_size'",
    ),
    "broadcasting": (
        returns(LOSS, "F.mse_loss(outputs[:, :1], batch[1].float())"),
        "loss() joins tensors of the shapes [8, 1] and [8], which torch broadcasts to [8, 8]",
    ),
    "groups by place": (
        returns(OPTIMIZER, "torch.optim.SGD([{'params': parameters[:-1]}, {'params': parameters[-1:], 'lr': 0.1}])"),
        "optimizer() groups parameters by their place in the list",
    ),
    "a step that reads whole tensors": (changed(OPTIMIZER, OWN_STEP.format(BY_TENSOR)), "reads whole tensors"),
    "a step that clips": (
        changed(OPTIMIZER, OWN_STEP.format("nn.utils.clip_grad_norm_(given, 5.0)")),
        "reads all parameters at once",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_what_may_be_meant_is_a_warning(case: str, tmp_path: Path) -> None:
    text, words = WARNINGS[case]
    (told,) = looked(tmp_path, text).warnings
    assert words in told
    assert re.search(r"\.py:\d+: ", told)


def test_with_a_further_term_a_loss_is_no_cross_entropy(tmp_path: Path) -> None:
    """Of shards of the classes it would be computed without that term."""
    further = "F.cross_entropy(outputs, batch[1]) + 0.1 * outputs.square().mean()"
    assert looked(tmp_path, returns(LOSS, further)).task.card.cross_entropy is False


def test_what_no_proof_can_repeat_is_seen_and_told(tmp_path: Path) -> None:
    drops = "self.second(F.dropout(F.relu(self.first(inputs)), 0.5, self.training))"
    found = looked(tmp_path, changed(FORWARD, f"{drops} * (1 + np.random.rand()) + random.random()"))
    seen, told = found.task.card, in_words(found)
    assert (seen.mean_difference, seen.outside) == (None, ("Python's random", "numpy"))
    assert seen.dropout == ("dropout",)
    assert "mean over samples" not in told, "what draws outside torch has another loss each time"
    assert "Random numbers from Python's random and numpy" in told


def test_a_part_without_a_finite_loss_is_no_nan_on_the_card(tmp_path: Path) -> None:
    of_one_class = "(outputs.square().mean(1) * (batch[1] == 1)).sum() / (batch[1] == 1).sum()"
    assert looked(tmp_path, returns(LOSS, of_one_class)).task.card.mean_difference == math.inf


def test_what_a_function_keeps_of_a_look_is_no_tensor_without_data(tmp_path: Path) -> None:
    """Whoever caches a table of positions would get that of the meta device, or torch's fake one."""
    keeps = (
        "@functools.lru_cache\ndef places(device):\n    return torch.arange(4, device=device) / 4\n\n\nclass Network"
    )
    text = changed("class Network", keeps).replace("import random", "import functools")
    found = looked(tmp_path, text.replace(FORWARD, FORWARD.replace("(inputs)", "(inputs + places(inputs.device))")))
    assert found.warnings == ()
    assert found.task.card.mean_difference == 0


JOINS = METHOD.format("collate_fn(self, samples)", "{}")
PADDED = changed(ITEM, "        return torch.ones(1 + index % 5, 4), torch.tensor(index % 3)\n").replace(
    MORE,
    JOINS.format("nn.utils.rnn.pad_sequence([x for x, _ in samples], True), torch.tensor([y for _, y in samples])"),
)
TABLE = changed(FORWARD, "self.second(inputs.long()).sum(1)").replace("Linear(8, 3)", "Embedding(16, 3, max_norm=0.1)")
# On what else than its samples a batch's loss depends, and what the card says of it; '' for nothing.
DEPENDENT = {
    "parameters": (TABLE, "the forward pass changes parameters (second.weight)", "def model"),
    "a state that is no buffer": (
        changed(MODEL, "        self.calls = 1\n" + MODEL).replace(
            LOSS, "        self.calls += 1\n        return self.calls * F.cross_entropy(outputs, batch[1])\n"
        ),
        "the loss of one batch is another one when it is computed again",
        "",
    ),
    "outputs": (
        changed(FORWARD, f"{FORWARD} * inputs.mean()"),
        "a sample's outputs depend on the other samples",
        "def model",
    ),
    "padding": (
        PADDED.replace(FORWARD, f"{FORWARD}.mean(1)"),
        "a sample's loss depends on how far its batch is padded",
        "def model",
    ),
    "joined samples": (
        added(
            "def collate_fn(self, samples):\n"
            "        made = torch.utils.data.default_collate(samples)\n"
            "        return made[0] + made[0].flip(0), made[1]\n"
        ),
        "the samples that collate_fn() makes depend on the others",
        "def collate_fn",
    ),
    "clipped gradients": (
        changed("        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)\n", CLIPPED),
        "a loss that is scaled has other gradients, beside the scale",
        "",
    ),
    "nothing to learn": (
        changed(LOSS, "        return F.relu(outputs - 1e6).mean()\n"),
        "all gradients of the first batch are 0",
        "",
    ),
    "an optimizer that counts by itself": (
        changed(OPTIMIZER, COUNTING.format("self.count", "made.count")),
        "a step of optimizer()'s is another one after a checkpoint",
        "def optimizer",
    ),
    "an optimizer that counts in its defaults": (
        changed(
            OPTIMIZER, COUNTING.format("self.param_groups[0]['k']", "made.param_groups[0]['k'] = made.defaults['k']")
        ),
        "a step of optimizer()'s is another one after a checkpoint",
        "def optimizer",
    ),
    "an optimizer that counts in its groups": (
        changed(OPTIMIZER, COUNTING.format("self.param_groups[0]['k']", "made.param_groups[0]['k']")),
        "",
        "",
    ),
    "a step of the optimizer that draws": (
        changed(OPTIMIZER, HOOKED.format("setattr(w := made.param_groups[0]['params'][0], 'data', w * torch.rand(1))")),
        "a step of optimizer()'s is another one when it is taken again",
        "def optimizer",
    ),
}


@pytest.mark.parametrize("case", DEPENDENT)
def test_what_depends_on_other_samples_cannot_be_proven(case: str, tmp_path: Path) -> None:
    text, words, line = DEPENDENT[case]
    found = looked(tmp_path, text)
    told = found.task.card.unrepeatable
    assert told.startswith(words)
    assert bool(told) == bool(words)
    assert why_unproven(found.task) == told
    if place := re.search(r"\.py:(\d+)\)", told):
        assert line in text.splitlines()[int(place[1]) - 1]
    assert bool(place) == bool(line)
