"""Users' mistakes in a task's file: each is one line with the file and the line, mostly before anything is queued."""

import logging
import math
import re
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from chain_runs import Bench
from gate_runs import FOLDER
from mistaken import PLACES, TASK, edited
from own_tasks import spec
from refusals import refusal
from relay.base.errors import UserError
from relay.card.look import Data, look
from relay.card.words import in_words
from relay.commands.card import card
from relay.config.strategies import StrategyFile
from relay.planning.skips import why_unproven
from relay.spec.strategy_files import find
from relay.spec.tasks import NO_GPU, Looked
from relay.task.bound import BoundTask
from relay.task.built import is_compiled
from relay.task.data import Mapped, Streamed
from relay.task.places import needs_gpu
from relay.task.split import Chosen
from trial_runs import gate_of

CASES = yaml.safe_load(Path(__file__).with_name("card_mistakes.yaml").read_text())
READ = "(Path(__file__).parent / 'labels.json').read_text()\nreturn Network()"


def cases(kind: str) -> Any:
    return pytest.mark.parametrize("case", CASES[kind], ids=lambda case: case["what"])


def text_of(case: dict[str, str]) -> str:
    """The task with this mistake in it."""
    return edited(**{place: code for place, code in case.items() if place in PLACES})


def looked(folder: Path, text: str, **options: Any) -> Looked:
    """The card of a task whose file has this text."""
    file = folder / f"task{abs(hash(text))}.py"
    file.write_text(text)
    return look("mine", str(file), options, Data(datasets=folder / "datasets", prepare=True))


def test_a_file_beside_the_tasks_has_to_be_declared(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text("[]")
    with pytest.raises(UserError, match=r"\.py:\d+: labels.json is missing in jobs, which have a copy of this file"):
        looked(tmp_path, edited(model=READ))
    with pytest.raises(UserError, match=r"files: '\.\./up.json' is not allowed"):
        looked(tmp_path, edited(model=READ, more="files = ('../up.json',)"))


def test_a_declared_file_is_read_and_its_content_makes_the_data(tmp_path: Path) -> None:
    """The look leaves no copy behind that another one would find."""
    prepares = "files = ('labels.json',)\n\ndef prepare(self, folder):\n    (folder / 'made').touch()"
    text, versions = edited(model=READ, more=prepares), set()
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


@cases("refused")
def test_a_mistake_is_one_line_with_its_place(case: dict[str, str], tmp_path: Path, monkeypatch) -> None:
    text, logged = text_of(case), list[Any]()
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handle", logged.append)
    told = refusal(looked, tmp_path, text)
    assert case["told"] in told
    assert "task" in told
    place = re.search(r"\.py:(\d+)", told)
    assert place, told
    assert case["line"] in text.splitlines()[int(place[1]) - 1]
    assert not logged, "torch's traceback"


@pytest.mark.parametrize("needs", ["inputs.cuda()", "check(inputs.is_cuda)"])
def test_for_want_of_a_gpu_the_card_says_what_to_do(needs: str, tmp_path: Path, capsys) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    check = "def check(is_cuda):\n    assert is_cuda\n\n\nclass Network"
    file = tmp_path / "mine.py"
    file.write_text(edited(forward=f"self.second(self.first(inputs)) + ({needs} or 0)").replace("class Network", check))
    assert card(ArgumentParser(), ["--task", str(file)]) == NO_GPU
    assert "; no GPU is here: leave out .cuda() and device=…, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "needs"),
    [
        (KeyError("gpus_per_node"), False),
        (FileNotFoundError("/scratch/gpu/data.npz"), False),
        (ValueError("Pointer argument (at 0) cannot be accessed (cpu tensor?)"), True),
        (AttributeError("module 'torch._C' has no attribute '_cuda_setDevice'"), True),
        (OSError("CUDA_HOME environment variable is not set"), True),
        (KeyError("CUDA_VISIBLE_DEVICES"), True),
    ],
)
def test_only_what_devices_raise_is_for_want_of_a_gpu(error: Exception, needs: bool) -> None:
    assert needs_gpu(error) is needs


def test_parameters_that_some_samples_leave_out_are_seen(tmp_path: Path) -> None:
    """As experts are, of which a sample takes few. The model takes the last sample in a larger batch alone."""
    raises = "1 / 0 if len(inputs) < 3 and inputs.max() > 13 else"
    forward = f"{raises} self.second(F.relu(self.first(inputs))) if inputs.sum() > 20 else self.first(inputs)[:, :3]"
    seen = looked(tmp_path, edited(forward=forward))
    assert (seen.warnings, seen.task.card.conditional) == ((), ("second.weight", "second.bias"))
    assert "Some samples, or random numbers, leave out second.weight, second.bias: ddp looks for such" in in_words(seen)
    unmet = StrategyFile.of(find([FOLDER])["fsdp"], reading=False).unmet(gate_of(seen.task, tmp_path / "data", "fsdp"))
    assert "random numbers, leave out parameters of mine's model, such as second.weight, and the" in next(unmet)
    static = gate_of(seen.task, tmp_path / "data", "ddp", 2, options={"static_graph": True, "compression": "none"})
    (unmet,) = StrategyFile.of(find([FOLDER])["ddp"], reading=False).unmet(static)
    assert unmet.startswith("static_graph takes each step to use the same parameters")


def test_parameters_that_some_samples_leave_out_are_seen_where_the_others_want_company(tmp_path: Path) -> None:
    layers = "self.first, self.second, self.norm = nn.Linear(4, 8), nn.Linear(8, 3), nn.BatchNorm1d(8)"
    forward = "self.second(self.norm(self.first(inputs))) if inputs.sum() > 20 else self.first(inputs)[:, :3]"
    conditional = looked(tmp_path, edited(layers=layers, forward=forward)).task.card.conditional
    assert set(conditional) >= {"norm.weight", "second.bias"}


@pytest.mark.parametrize("compiles", ["made[0] = torch.compile(made[0])", "made.compile()"])
def test_what_torch_compile_has_made_is_taken_off(compiles: str, tmp_path: Path) -> None:
    model = f"made = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))\n{compiles}\nreturn made"
    seen = looked(tmp_path, edited(model=model))
    assert "model() has what torch.compile made" in seen.warnings[0]
    task = BoundTask(seen.task, 1, "fp32", 1, 1)
    assert [name for name, _ in task.model().named_parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert not is_compiled(task.model())


def test_a_list_may_contain_itself(tmp_path: Path) -> None:
    layers = "self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)\nself.kept = [torch.ones(1)]\n"
    seen = looked(tmp_path, edited(layers=f"{layers}self.kept.append(self.kept)"))
    assert (seen.warnings, bool(seen.task.card.cuts)) == ((), True)


def test_the_task_without_mistakes_has_a_card(tmp_path: Path) -> None:
    seen = looked(tmp_path, TASK)
    assert seen.warnings == ()
    assert seen.task.card.mean_difference == 0
    assert seen.task.card.cross_entropy
    assert seen.task.card.optimizer_scope == "element"
    assert (seen.dataset.train_count, seen.dataset.test_count) == (16, 16)


@cases("warned")
def test_what_may_be_meant_is_a_warning(case: dict[str, str], tmp_path: Path) -> None:
    (told,) = looked(tmp_path, text_of(case)).warnings
    assert case["told"] in told
    assert re.search(r"\.py:\d+: ", told)


def test_with_a_further_term_a_loss_is_no_cross_entropy(tmp_path: Path) -> None:
    """Of shards of the classes it would be computed without that term."""
    further = "return F.cross_entropy(outputs, batch[1]) + 0.1 * outputs.square().mean()"
    assert looked(tmp_path, edited(loss=further)).task.card.cross_entropy is False


def test_what_no_proof_can_repeat_is_seen_and_told(tmp_path: Path) -> None:
    drops = "self.second(F.dropout(F.relu(self.first(inputs)), 0.5, self.training))"
    found = looked(tmp_path, edited(forward=f"{drops} * (1 + np.random.rand()) + random.random()"))
    seen, told = found.task.card, in_words(found)
    assert (seen.mean_difference, seen.outside) == (None, ("Python's random", "numpy"))
    assert seen.dropout == ("dropout",)
    assert "mean over samples" not in told, "what draws outside torch has another loss each time"
    assert "Random numbers from Python's random and numpy" in told


def test_a_part_without_a_finite_loss_is_no_nan_on_the_card(tmp_path: Path) -> None:
    of_one_class = "return (outputs.square().mean(1) * (batch[1] == 1)).sum() / (batch[1] == 1).sum()"
    assert looked(tmp_path, edited(loss=of_one_class)).task.card.mean_difference == math.inf


def test_what_a_function_keeps_of_a_look_is_no_tensor_without_data(tmp_path: Path) -> None:
    """Whoever caches a table of positions would get that of the meta device, or torch's fake one."""
    keeps = "@functools.lru_cache\ndef places(device):\n    return torch.arange(4, device=device) / 4\n\n\n"
    forward = PLACES["forward"].replace("(inputs)", "(inputs + places(inputs.device))")
    found = looked(tmp_path, edited(forward=forward).replace("class Network", f"{keeps}class Network"))
    assert found.warnings == ()
    assert found.task.card.mean_difference == 0


@cases("unproven")
def test_what_depends_on_other_samples_cannot_be_proven(case: dict[str, str], tmp_path: Path) -> None:
    text = text_of(case)
    found = looked(tmp_path, text)
    told = found.task.card.unrepeatable
    assert told.startswith(case["told"])
    assert bool(told) == bool(case["told"])
    assert why_unproven(found.task) == told
    place = re.search(r"\.py:(\d+)\)", told)
    assert bool(place) == ("line" in case)
    assert not place or case["line"] in text.splitlines()[int(place[1]) - 1]


# A mistake in one late sample, which no look has seen: told with its number, and never blamed on another


CPU = torch.device("cpu")
NAN = "point[2] = float('nan')"
BROKEN = "raise ValueError('broken file')"
SHORT = "point = point[:3]"
LATE = 77
FIRST = Chosen(torch.tensor([3, LATE, 5, 1]))


def written(folder: Path, late: str) -> Path:
    """The task's file, with a mistake in one of 1,000 samples."""
    file = folder / "points.py"
    code = f"point = torch.full((4,), index / 1000)\nif index == {LATE}:\n    {late}\nreturn point, index % 3"
    file.write_text(edited(samples=code).replace("return 16", "return 1000"))
    return file


IN_NO_BATCH = "the samples make no batch (sample 77 of the training set has the shape [3], sample 3 [4]); allowed: "


# What the sample does, what is told of it, and in which line of the file.
@pytest.mark.parametrize(
    ("late", "told", "line", "workers"),
    [
        (BROKEN, "sample 77 of the training set: ValueError: broken file", BROKEN, 0),
        (SHORT, IN_NO_BATCH, "def datasets", 1),
    ],
    ids=["an error", "another shape"],
)
def test_a_late_sample_is_told_with_its_place(late: str, told: str, line: str, workers: int, tmp_path: Path) -> None:
    """Wherever it is read: for proofs, and by the loader's processes."""
    file = written(tmp_path, late)
    split = BoundTask(spec(str(file)), 5, "fp32", 10, 5, folder=tmp_path).split("train")
    number = file.read_text().partition(line)[0].count("\n") + 1
    ways = [Streamed(split, CPU, workers)] if workers else [Mapped(split, CPU), Streamed(split, CPU, 0)]
    for way in ways:
        assert refusal(lambda way=way: list(way.batches(iter([FIRST])))).startswith(f"{file}:{number}: {told}")


@pytest.mark.slow
def test_a_run_names_the_sample_that_made_its_loss_nan(bench: Bench, tmp_path: Path) -> None:
    processes = {"launcher": "torchrun", "devices_per_node": 2, "strategy": "ddp"}
    chain = bench.chain("results", spec(str(written(tmp_path, NAN))), total_steps=125, **processes)
    ended = chain.forked()
    assert ended.status == 1
    told = chain.fault()["error"]
    assert told.startswith("the training loss of step ")
    assert " is nan, because batch[0] is nan in sample 77 of the training set; mend the data" in told
    assert "diverged" not in told
    assert chain.fault()["mistake"] is True
