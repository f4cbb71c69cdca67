"""Users' mistakes in a task's file: each is one line with the file and the line, before anything is queued."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from relay.base.errors import UserError
from relay.card.learning import _Calls
from relay.card.look import Data, look
from relay.card.model import UNWRAPPED
from relay.planning.unproven import because
from relay.spec.looked import Looked

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
DATASETS = "        return Numbers(), Numbers()\n"
LOSS = "        return F.cross_entropy(outputs, batch[1])\n"
MODEL = "        return Network()\n"
OPTIMIZER = "        return torch.optim.SGD(parameters, self.learning_rate)\n"
FORWARD = "self.second(F.relu(self.first(inputs)))"
OWN_RATE = (
    "        self.made = torch.optim.SGD(parameters, self.learning_rate)\n        return self.made\n",
    '        getattr(self, "made", None) and self.made.param_groups[0].update(lr=0.5)\n',
)
SCHEDULERS = "torch.optim.lr_scheduler"
CLIPPED = """\
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.first.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
"""
STATELESS = """\
class Wrapped(torch.optim.Optimizer):
    def __init__(self, base):
        self.base, self.param_groups = base, base.param_groups

    def step(self, closure=None):
        self.base.step()


class Task"""
HOOKED = """\
        made = torch.optim.SGD(parameters, self.learning_rate)
        made.register_step_post_hook(lambda *_: {})
        return made
"""
SCHEDULER = HOOKED.format("rate.step()").replace(
    "        made.reg",
    "        rate = torch.optim.lr_scheduler.LambdaLR(made, lambda step: step / 10)\n        made.reg",
)
SAM = """\
class Sam(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None, "SAM requires closure"


class Task"""
MORE = "    width = 8\n"  # what is put here belongs to the class
METHOD = MORE + "\n    def {}:\n        return {}\n\n"
METRICS = MORE + "\n    def metrics(self, outputs, batch):\n        return {}\n\n"


def looked(folder: Path, text: str, **options: Any) -> Looked:
    """The card of a task whose file has this text."""
    file = folder / f"task{abs(hash(text))}.py"
    file.write_text(text)
    return look("mine", str(file), options, Data(datasets=folder / "datasets", prepare=True))


def changed(old: str, new: str) -> str:
    assert TASK.count(old) == 1
    return TASK.replace(old, new)


# What the user wrote; what the line says; a text in the line of the file that it names.
MISTAKES = {
    "no class": (
        changed("class Task(relay.Task):", "class Task:"),
        "one class must derive from relay.Task; found: none",
        None,
    ),
    "two classes": (TASK + "\nclass Other(relay.Task):\n    pass\n", "found: Task and Other", None),
    "no Python": (changed("import random", "import random random"), "no valid Python", "import random random"),
    "a missing package": (
        changed("import random", "import nibabel"),
        "`packages` of the config adds",
        "import nibabel",
    ),
    "a missing package, imported late": (
        changed(DATASETS, "        import nibabel\n"),
        "`packages` of the config adds",
        "import nibabel",
    ),
    "no model": (
        changed("    def model(self)", "    def models(self)"),
        "method model is missing; did you mean 'models'",
        "class Task",
    ),
    "a wrong signature": (
        changed("def loss(self, outputs, batch)", "def loss(self, batch)"),
        "allowed: def loss(self, outputs, batch)",
        "def loss",
    ),
    "no method": (changed(MORE, MORE + "    metrics = 3\n"), "metrics is 3; allowed: a method", "metrics = 3"),
    "a rate of text": (
        changed(MORE, MORE + "    learning_rate = '1e-3'\n"),
        "learning_rate is '1e-3'; allowed: a number above 0",
        "learning_rate =",
    ),
    "clipping at nothing": (
        changed(MORE, MORE + "    clip_grad_norm = 0\n"),
        "clip_grad_norm is 0; allowed: a number above 0",
        "clip_grad_norm =",
    ),
    "an average of weights": (
        changed(MODEL, "        return torch.optim.swa_utils.AveragedModel(Network())\n"),
        "model() has an average of weights (the model itself), and steps update no other weights than those",
        "def model",
    ),
    "boxes": (
        changed(
            MORE,
            METHOD.format(
                "collate_fn(self, samples)", "torch.zeros(len(samples), 4), [torch.zeros(3, 4)] * len(samples)"
            ),
        ),
        "such as boxes, padded, with a mask",
        "def collate_fn",
    ),
    "a schedule": (
        changed(MORE, MORE + "    schedule = {'kind': 'cosin'}\n"),
        "allowed: a dict whose 'kind' is one of constant, step, cosine",
        "schedule =",
    ),
    "an unknown small": (changed(MORE, MORE + "    small = {'widht': 2}\n"), "did you mean 'width'", "small ="),
    "one dataset": (changed(DATASETS, "        return Numbers()\n"), "must return two datasets", "def datasets"),
    "no samples": (changed("        return 16", "        return 0"), "Numbers has no samples", "def datasets"),
    "a stream": (
        changed(
            "class Numbers(Dataset):\n", "class Numbers(IterableDataset):\n    def __iter__(self):\n        yield 1\n\n"
        ),
        "every strategy has to find the same samples by their numbers",
        "def datasets",
    ),
    "differing shapes": (
        changed(ITEM, "        return torch.zeros(3 + index % 2), torch.tensor(0)\n"),
        "or a method collate_fn(self, samples) that joins them",
        "def datasets",
    ),
    "text in a batch": (
        changed(ITEM, "        return torch.zeros(4), 'cat'\n"),
        "batch[1][0] is str; allowed: tensors",
        "def datasets",
    ),
    "no first dimension": (
        changed(
            MORE,
            MORE
            + "    def collate_fn(self, samples):\n        return torch.zeros(len(samples), 4), torch.tensor(2)\n\n",
        ),
        "batch[1] of 8 samples has the shape []; allowed: 8, the samples, as the first dimension",
        "def collate_fn",
    ),
    "another device": (
        changed(ITEM, "        return torch.zeros(4, device='meta'), torch.tensor(0)\n"),
        "is on the device meta; allowed: the CPU",
        "def datasets",
    ),
    "another sample": (
        changed(ITEM, "        return torch.full((4,), np.random.default_rng().random()), torch.tensor(0)\n"),
        "sample 0 of the training set is another one when it is read again, with the same seed and epoch",
        "def datasets",
    ),
    "an error in a sample": (
        changed(ITEM, "        return [][index]\n"),
        "sample 0 of the training set: IndexError: list index out of range",
        "return [][index]",
    ),
    "an error in a late sample": (
        changed(ITEM, "        return torch.zeros(4), 1 // (15 - index)\n"),
        "sample 15 of the training set: ZeroDivisionError",
        "1 // (15 - index)",
    ),
    "one late sample of another shape": (
        changed(ITEM, "        return torch.zeros(4 + (index == 9)), torch.tensor(0)\n"),
        "sample 9 of the training set has the shape [5], sample 0 [4]; allowed: one shape for all",
        "def datasets",
    ),
    "nan in the first samples": (
        changed(ITEM, ITEM.replace("float(index)", "float('nan' if index == 4 else index)")),
        "the loss of the first batch is nan, because batch[0] is nan in sample 4 of the training set; mend the data",
        "def loss",
    ),
    "a drawing transform": (
        changed(MORE, MORE + "    def transform(self, batch):\n        return batch[0] + torch.rand(4), batch[1]\n\n"),
        "transform() draws random numbers",
        "def transform",
    ),
    "a model of another kind": (
        changed(MODEL, "        return 3\n"),
        "model() returned int; allowed: a torch.nn.Module",
        "def model",
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
    "an error in forward": (
        changed("F.relu(self.first(inputs))", "F.relu(self.first(inputs[:, :2]))"),
        "a batch of 8 samples: RuntimeError: ",
        "F.relu(self.first(inputs[:, :2]))",
    ),
    "no number": (
        changed(LOSS, "        return F.cross_entropy(outputs, batch[1]) / 0 * 0\n"),
        "the loss of the first batch is nan",
        "def loss",
    ),
    "no scalar": (
        changed(LOSS, "        return F.cross_entropy(outputs, batch[1], reduction='none')\n"),
        "loss() returned a tensor of shape [8]",
        "def loss",
    ),
    "no loss": (changed("    def loss(self, outputs, batch):\n" + LOSS, ""), "loss is missing", "class Task"),
    "no gradient": (
        changed(LOSS, "        return F.cross_entropy(outputs.detach(), batch[1])\n"),
        "no parameter of the model gets a gradient",
        "def loss",
    ),
    "a gradient that is no number": (
        changed(LOSS, "        return torch.where(outputs > 1e9, outputs / 0, outputs.square()).mean()\n"),
        "is not finite in the first batch, although the loss is; allowed: finite ones",
        "def loss",
    ),
    "no optimizer": (
        changed(OPTIMIZER, "        return self.learning_rate\n"),
        "optimizer() returned float; allowed: a torch.optim.Optimizer",
        "def optimizer",
    ),
    "an optimizer of other parameters": (
        changed(OPTIMIZER, "        return torch.optim.SGD(Network().parameters(), self.learning_rate)\n"),
        "optimizer() holds none of the parameters that it was given",
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
    "a rate that the loss changes": (
        changed(OPTIMIZER, OWN_RATE[0]).replace(LOSS, OWN_RATE[1] + LOSS),
        "a training step changes the learning rate",
        "def optimizer",
    ),
    "a weight decay that steps change": (
        changed(OPTIMIZER, HOOKED.format("made.param_groups[0].update(weight_decay=0.1)")),
        "a training step changes weight_decay; allowed: one that stays",
        "def optimizer",
    ),
    "a scheduler that wants to know the loss": (
        changed(MORE, METHOD.format("scheduler(self, optimizer, steps)", f"{SCHEDULERS}.ReduceLROnPlateau(optimizer)")),
        "missing 1 required positional argument: 'metrics'",
        "def scheduler",
    ),
    "a scheduler that changes more": (
        changed(MORE, METHOD.format("scheduler(self, optimizer, steps)", f"{SCHEDULERS}.CyclicLR(optimizer, 0.1, 1)")),
        "scheduler() changes the momentum; allowed: the learning rate alone, as with cycle_momentum=False",
        "def scheduler",
    ),
    "no scheduler": (
        changed(MORE, METHOD.format("scheduler(self, optimizer, steps)", "optimizer")),
        "scheduler() returned SGD; allowed: one of torch's schedulers, of the optimiser that it is given",
        None,
    ),
    "a scheduler and a schedule": (
        changed(
            MORE, METHOD.format("scheduler(self, optimizer, steps)", "None") + "    schedule = {'kind': 'cosine'}\n"
        ),
        "schedule is given beside a method scheduler; allowed: one of them",
        "schedule =",
    ),
    "an optimizer without a state": (
        changed(OPTIMIZER, "        return Wrapped(torch.optim.SGD(parameters, self.learning_rate))\n").replace(
            "class Task", STATELESS
        ),
        "of Wrapped",
        "",
    ),
    "sparse gradients": (
        changed(FORWARD, "self.second(inputs.long()).sum(1)").replace(
            "nn.Linear(8, 3)", "nn.Embedding(16, 3, sparse=True)"
        ),
        "the gradient of second.weight is sparse, and strategies sum and divide dense ones; allowed: nn.Embedding",
        "def model",
    ),
    "two optimizers": (
        changed(OPTIMIZER, OPTIMIZER.rstrip() + ", None\n"),
        "optimizer() returned tuple; a step has one loss and one backward pass; allowed: a torch.optim.Optimizer, with "
        "groups of parameters",
        "def optimizer",
    ),
    "several losses in a step": (
        changed(OPTIMIZER, "        return torch.optim.LBFGS(parameters, self.learning_rate)\n"),
        "step() of LBFGS, called without a closure: TypeError",
        "def optimizer",
    ),
    "a closure": (
        changed(OPTIMIZER, "        return Sam(parameters, self.learning_rate)\n").replace("class Task", SAM),
        "step() of Sam, called without a closure: AssertionError: SAM requires closure",
        "assert closure",
    ),
    "metrics of samples": (
        changed(
            MORE,
            MORE + "    def metrics(self, outputs, batch):\n        return {'hit': outputs.argmax(-1) == batch[1]}\n\n",
        ),
        "metrics(): hit is a tensor of shape [8]; allowed: a single number",
        "def metrics",
    ),
    "a metric that is no mean": (
        changed(MORE, METRICS.format("{'rmse': outputs.square().mean().sqrt()}")),
        "metrics(): rmse is no mean over samples: of a batch it is ",
        "def metrics",
    ),
    "metrics without a name": (
        changed(MORE, MORE + "    def metrics(self, outputs, batch):\n        return {1: 0.5}\n\n"),
        "metrics(): 1 is no name; allowed: a text",
        "def metrics",
    ),
    "a metric that is there": (
        changed(MORE, MORE + "    def metrics(self, outputs, batch):\n        return {'loss': 0.5}\n\n"),
        "metrics(): 'loss' is measured in any case; allowed: other names",
        "def metrics",
    ),
    "epochs of no length": (
        changed(MORE, MORE + "    schedule = {'kind': 'step', 'every_epochs': 0, 'gamma': 0.5}\n"),
        "schedule: every_epochs is 0; allowed: a whole number of at least 1",
        "schedule =",
    ),
    "an endless warm-up": (
        changed(MORE, MORE + "    schedule = {'kind': 'cosine', 'warmup_epochs': float('nan')}\n"),
        "schedule: warmup_epochs is NaN; allowed: a number of at least 0",
        "schedule =",
    ),
    "several kinds": (
        changed(MORE, MORE + "    schedule = {'kind': ['cosine']}\n"),
        "allowed: a dict whose 'kind' is one of constant, step, cosine",
        "schedule =",
    ),
    "small without options": (
        changed(MORE, MORE + "    small = None\n"),
        "small is null; allowed: a dict of options",
        "small =",
    ),
    "a rate that is computed": (
        changed(MORE, MORE + "    @property\n    def learning_rate(self):\n        return 0.1\n\n"),
        "learning_rate is a property; allowed: a plain value of the class",
        "def learning_rate",
    ),
    "a task with arguments": (
        changed(MORE, MORE + "    def __init__(self, width):\n        self.width = width\n\n"),
        "missing 1 required positional argument: 'width'",
        "def __init__",
    ),
    "a plan that is a list": (
        changed(MORE, MORE + "    def tensor_plan(self, model):\n        return ['first']\n\n"),
        "tensor_plan() returned list; allowed: a dict of names of modules, or None",
        "def tensor_plan",
    ),
    "nothing to train": (
        changed(MODEL, "        return Network().requires_grad_(False)\n"),
        "all parameters have requires_grad=False",
        "def model",
    ),
    "parameters of the loss": (
        changed(
            OPTIMIZER,
            "        more = nn.Parameter(torch.ones(1))\n"
            "        return torch.optim.SGD([*parameters, more], self.learning_rate)\n",
        ),
        "optimizer() holds 1 parameters that are none of the model's",
        "def optimizer",
    ),
    "prepare that fails": (
        changed(
            MORE,
            MORE
            + "    def prepare(self, folder):\n        (folder / 'half').touch()\n        raise KeyError('column')\n\n",
        ),
        "prepare() failed, nothing is used of what it made",
        "raise KeyError",
    ),
    "prepare that makes nothing": (
        changed(MORE, MORE + "    def prepare(self, folder):\n        pass\n\n"),
        "prepare() left nothing in the folder",
        "def prepare",
    ),
}


READS = changed(MODEL, "        (Path(__file__).parent / 'labels.json').read_text()\n" + MODEL).replace(
    "import random\n", "import random\nfrom pathlib import Path\n"
)
# What the class says of its files; what the line says, and a text in the line of the file that it names.
FILES = {
    "not declared": (
        "",
        "labels.json is missing in jobs, which have a copy of this file",
        "'labels.json').read_text()",
    ),
    "not there": ("('labels.json', 'gone.json')", "files: 'gone.json' is no file; allowed: a data file", "files ="),
    "elsewhere": ("('../up.json',)", "files: '../up.json' is not allowed", "files ="),
    "one text": ("'labels.json'", "files is 'labels.json'; allowed: names of files", "files ="),
    "computed": ("tuple(['labels.json'])", "files: 'labels.json' has to be computed", "files ="),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_beside_the_tasks_has_to_be_declared(case: str, tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text("[]")
    (tmp_path.parent / "up.json").write_text("[]")
    value, words, line = FILES[case]
    with pytest.raises(UserError) as raised:
        looked(tmp_path, READS.replace(MORE, MORE + (f"    files = {value}\n" if value else "")))
    (file,) = tmp_path.glob("*.py")
    place, _, told = str(raised.value).partition(": ")
    assert told.startswith(words)
    assert place.startswith(f"{file}:")
    assert line in file.read_text().splitlines()[int(place.rpartition(":")[2]) - 1]


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
    if line is not None:
        place = re.search(r"\.py:(\d+)", told)
        assert place, told
        assert line in text.splitlines()[int(place[1]) - 1]


def test_the_task_without_mistakes_has_a_card(tmp_path: Path) -> None:
    seen = looked(tmp_path, TASK)
    assert seen.warnings == ()
    assert seen.task.card.mean_difference == 0
    assert (seen.dataset.train_count, seen.dataset.test_count) == (16, 16)


def test_nothing_half_made_is_used(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        looked(tmp_path, MISTAKES["prepare that fails"][0])
    assert not [path for path in (tmp_path / "datasets").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("options", "words"), [({"width": "wide"}, "width: 'wide'"), ({"widht": 2}, "did you mean 'width'")]
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        looked(tmp_path, TASK, **options)


WARNINGS = {
    "left out": (
        changed(
            OPTIMIZER, "        return torch.optim.SGD([p for p in parameters if len(p) > 3], self.learning_rate)\n"
        ),
        "leaves out second.weight, second.bias",
    ),
    "without gradient": (
        changed("self.second(F.relu(self.first(inputs)))", "self.second(F.relu(self.first(inputs)).detach())"),
        "first.weight, first.bias got no gradient",
    ),
    "a misspelt attribute": (changed(MORE, MORE + "    global_batchsize = 8\n"), "did you mean 'global_batch_size'"),
    "a misspelt method": (
        changed(MORE, MORE + "\n    def metric(self, outputs, batch):\n        return {}\n\n"),
        "metric is no method of relay.Task, and nothing in the file calls it; did you mean 'metrics'?",
    ),
    "a method of another library": (
        changed(MORE, MORE + "\n    def training_step(self, batch):\n        return 0\n\n"),
        "training_step is no method of relay.Task, and nothing in the file calls it; relay.Task has prepare, datasets,",
    ),
    "samples that are joined": (
        changed(
            MORE,
            MORE + "    def collate_fn(self, samples):\n"
            "        made = torch.utils.data.default_collate(samples)\n"
            "        return made[0] + made[0].flip(0), made[1]\n\n",
        ),
        "the samples that collate_fn() makes depend on the others of their batch",
    ),
    "broadcasting": (
        changed(LOSS, "        return F.mse_loss(outputs[:, :1], batch[1].float())\n"),
        "loss() joins tensors of the shapes [8, 1] and [8], which torch broadcasts to [8, 8]",
    ),
    "tensors of the CPU": (
        changed(MORE, MORE + "    def transform(self, batch):\n        return batch[0] - torch.ones(4), batch[1]\n\n"),
        "allowed: tensors on the batch's device",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_what_may_be_meant_is_a_warning(case: str, tmp_path: Path) -> None:
    text, words = WARNINGS[case]
    (told,) = looked(tmp_path, text).warnings
    assert words in told
    assert re.search(r"\.py:\d+: ", told)


def test_a_metric_of_the_whole_set_follows_from_means(tmp_path: Path) -> None:
    final = "\n    def final_metrics(self, means):\n        return {'rmse': means['square'] ** 0.5}\n\n"
    text = changed(MORE, METRICS.format("{'square': outputs.square().mean()}") + final)
    assert looked(tmp_path, text).task.metrics == ("rmse",)


TOKENS = """
    def metrics(self, outputs, batch):
        told = torch.arange(3) <= batch[1][:, None]
        {}

"""
OF_TOKENS = "return {'size': (outputs * told).sum() / told.sum()}"
OF_SAMPLES = "return {'size': (outputs * told).sum() / len(told), 'count': told.sum() / len(told)}"


def test_a_training_may_begin_from_weights_in_a_file_beside_it(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    torch.save({"bias": torch.full((8,), 0.5)}, tmp_path / "start.pt")
    read = """        made = Network()
        made.first.load_state_dict(torch.load(Path(__file__).with_name("start.pt")), strict=False)
        return made
"""
    text = changed(MODEL, read).replace("import random\n", "import random\nfrom pathlib import Path\n", 1)
    found = looked(tmp_path, text.replace(MORE, MORE + '    files = ("start.pt",)\n'))
    assert found.warnings == ()
    assert not [each for each in recwarn if "meta" in str(each.message)]


def test_a_mean_over_tokens_is_told_and_not_refused(tmp_path: Path) -> None:
    found = looked(tmp_path, changed(MORE, MORE + TOKENS.format(OF_TOKENS)))
    assert found.task.metrics == ("size",)
    (told,) = found.warnings
    assert "a mean over something else, such as tokens, is another one where a batch is divided otherwise" in told
    assert looked(tmp_path, changed(MORE, MORE + TOKENS.format(OF_SAMPLES))).warnings == ()


def test_indexing_is_no_broadcasting() -> None:
    column, row = torch.rand(8, 1), torch.arange(8)
    with _Calls() as calls:
        column[row, 0].sum()
        assert calls.broadcast == 0
        (column - row).mean()
    assert calls.broadcast == 8


JOINS = METHOD.format("collate_fn(self, samples)", "{}")
PADDED = changed(ITEM, "        return torch.ones(1 + index % 5, 4), torch.tensor(index % 3)\n").replace(
    MORE,
    JOINS.format("nn.utils.rnn.pad_sequence([x for x, _ in samples], True), torch.tensor([y for _, y in samples])"),
)
TABLE = changed(FORWARD, "self.second(inputs.long()).sum(1)").replace("Linear(8, 3)", "Embedding(16, 3, max_norm=0.1)")
# On what else than its samples a batch's loss depends, and what the card says of it; '' for nothing.
DEPENDENT = {
    "parameters": (TABLE, "the forward pass changes parameters (second.weight)", "def model"),
    "a transform": (
        changed(MORE, METHOD.format("transform(self, batch)", "batch[0] + batch[0].roll(1, 0), batch[1]")),
        "the samples that transform() makes depend on the others",
        "def transform",
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
        WARNINGS["samples that are joined"][0],
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
    "sorted samples": (changed(MORE, JOINS.format("torch.utils.data.default_collate(samples[::-1])")), "", ""),
    "padding before samples": (
        PADDED.replace("samples], True)", "samples], True, 0.0, 'left')").replace(
            FORWARD, f"({FORWARD} * inputs[..., :1]).sum(1)"
        ),
        "",
        "",
    ),
    "masked padding": (PADDED.replace(FORWARD, f"({FORWARD} * inputs[..., :1]).sum(1)"), "", ""),
}


@pytest.mark.parametrize("case", DEPENDENT)
def test_what_depends_on_other_samples_cannot_be_proven(case: str, tmp_path: Path) -> None:
    text, words, line = DEPENDENT[case]
    found = looked(tmp_path, text)
    told = found.task.card.unrepeatable
    assert told.startswith(words)
    assert bool(told) == bool(words)
    assert because(found.task) == told
    if place := re.search(r"\.py:(\d+)\)", told):
        assert line in text.splitlines()[int(place[1]) - 1]
    assert bool(place) == bool(line)


COMPILED = "torch.compile(Network(), backend='eager')"
DICTS = changed(
    ITEM, ITEM.replace("torch.full", "{'inputs': torch.full").replace(", torch.t", ", 'y': torch.t")[:-1] + "}\n"
)


@pytest.mark.parametrize(
    "text",
    [
        *(changed(MODEL, f"        return Network().{kind}()\n") for kind in ("double", "bfloat16")),
        DICTS.replace("batch[1]", "batch['y']"),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_models_of_other_types_and_compiled_ones_are_looked_at_as_they_are_trained(
    text: str, compiled: bool, tmp_path: Path
) -> None:
    text = text.replace("return Network()", f"return {COMPILED}") if compiled else text
    found = looked(tmp_path, text)
    assert found.task.card.mean_difference == 0
    assert found.task.card.cuts
    assert [told.partition(": ")[2] for told in found.warnings] == ([UNWRAPPED] if compiled else [])


def test_misspelt_methods_come_with_what_they_cause(tmp_path: Path) -> None:
    """Without `prepare` there are no files, and without files no samples."""
    text = changed(DATASETS, "        return [*folder.iterdir()], Numbers()\n")
    text = text.replace(MORE, MORE + "\n    def prepare_data(self, folder):\n        (folder / 'one').touch()\n\n")
    with pytest.raises(UserError) as raised:
        looked(tmp_path, text)
    no_samples, misspelt = str(raised.value).splitlines()
    assert "has no samples" in no_samples
    assert misspelt.endswith("nothing in the file calls it; did you mean 'prepare'?")
    assert text.splitlines()[int(misspelt.split(":")[1]) - 1] == "    def prepare_data(self, folder):"


def test_nan_in_a_late_sample_is_a_warning_for_each_set(tmp_path: Path) -> None:
    """It may be meant: a loss can leave missing values out."""
    text = changed(ITEM, ITEM.replace("float(index)", "float('nan' if index == 13 else index)"))
    told = [warning.partition(": ")[2] for warning in looked(tmp_path, text).warnings]
    assert told == [f"nan is in sample 13 of the {name} set; is that meant?" for name in ("training", "test")]


OWN_METHODS = """
    def doubled(self, inputs):
        return 2 * inputs

    @staticmethod
    def named(self):
        return "named"

    def transform(self, batch):
        return self.doubled(batch[0]), batch[1]

    def inputs(self, batch):
        return getattr(self, "named") and batch[0]

    @property
    def half(self):
        return self.width / 2

    def _hidden(self):
        return 0

"""


def test_a_tasks_own_methods_are_no_mistake(tmp_path: Path) -> None:
    assert looked(tmp_path, changed(MORE, MORE + OWN_METHODS)).warnings == ()


def test_values_that_are_no_options_are_named(tmp_path: Path) -> None:
    values = "    channels, folds, _own = [4, 8], None, [1]\n    Kind = Network\n"
    card = looked(tmp_path, changed(MORE, MORE + values)).task.card
    assert card.no_options == ("channels", "folds")
