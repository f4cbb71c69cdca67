"""Global batches: the same samples in the same order, whatever feeds them and however many processes share them."""

import itertools
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from chain_runs import DIGITS, LIKE_CIFAR
from own_tasks import bound, data_of
from relay.spec.tasks import TaskSpec
from relay.task import batches, split
from relay.task.data import Resident, feeder
from relay.task.load import task_of
from relay.task.prepared import version_of
from relay.task.split import Chosen, chosen

CPU = torch.device("cpu")


def at(count: int, batch: int, seed: int, step: int) -> torch.Tensor:
    """The positions of a step's whole global batch."""
    return chosen(count, batch, seed, step).positions


def split_of(prepared: Path, its: TaskSpec, precision: str = "fp32") -> split.Split:
    """The training split of a task."""
    return bound(its, precision, prepared / data_of(its, prepared).directory_name).split("train")


# Global batches


def test_a_global_batch_depends_on_seed_and_step_alone() -> None:
    """Whatever was asked before, and whatever the process's own generator did."""
    asked = {step: at(1437, 64, 7, step) for step in (0, 21, 22, 500)}
    for step in (500, 22, 0, 21):
        split._order.cache_clear()
        torch.manual_seed(step)
        before = torch.get_rng_state()
        assert torch.equal(at(1437, 64, 7, step), asked[step])
        assert torch.equal(torch.get_rng_state(), before), "drew from the generator that dropout draws from"


def test_the_order_is_that_of_older_versions() -> None:
    """A run is gone on with after an update: these values must never change."""
    assert at(1437, 64, 0, 0)[:5].tolist() == [544, 1137, 1209, 819, 548]
    assert at(1437, 64, 1, 25)[:5].tolist() == [917, 563, 960, 381, 19]


@pytest.mark.parametrize(("count", "batch"), [(1437, 64), (77, 77)])
def test_an_epoch_holds_no_sample_twice_and_the_next_is_another(count: int, batch: int) -> None:
    steps = count // batch
    epochs = [torch.cat([at(count, batch, 3, e * steps + s) for s in range(steps)]) for e in range(4)]
    for epoch in epochs:
        assert len(epoch) == steps * batch
        assert len(epoch.unique()) == len(epoch)
        assert 0 <= epoch.min() <= epoch.max() < count
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(epochs))


@pytest.mark.parametrize(("kind", "replicas"), [("resident", 2), ("dataloader", 4)])
def test_the_replicas_slices_unite_to_the_global_batch(prepared: Path, kind: str, replicas: int) -> None:
    """Every slice of equal length, together exactly the batch of a single process, for any world size."""
    feeding = feeder(kind, split_of(prepared, DIGITS), CPU, 0)
    steps = (0, 21, 22)
    whole = list(feeding.batches(chosen(1437, 64, 0, step) for step in steps))
    slices = [
        list(feeding.batches(chosen(1437, 64, 0, s, index, replicas) for s in steps)) for index in range(replicas)
    ]
    for step, batch in enumerate(whole):
        parts = [mine[step] for mine in slices]
        assert {batches.count(part) for part in parts} == {64 // replicas}
        for one, other in zip(batches.joined(parts), batch, strict=True):
            assert torch.equal(one, other)


# The built-in tasks' samples


@pytest.mark.parametrize("its", [DIGITS, LIKE_CIFAR], ids=lambda its: its.name)
def test_training_images_have_zero_mean_and_unit_deviation(prepared: Path, its: TaskSpec) -> None:
    data = split_of(prepared, its, "fp64")
    inputs, _ = Resident(data, CPU).fetch(Chosen(torch.arange(len(data))))
    assert inputs.mean((0, 2, 3)).abs().max() < 1e-5
    assert (inputs.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


# A task's data are made anew when `prepare`, or any of the user's code that it calls, has changed

FILE = '''
import relay
from shapes import circle

SIZE = 8


def draw(count):
    """Rows."""
    return [circle(SIZE) for _ in range(count)]


class Task(relay.Task):
    count = 3
    width = 4

    def prepare(self, folder):
        (folder / "rows").write_text(str([*draw(self.count), *self.more()]))

    def more(self):
        return Kept().rows


class Kept:
    rows = [1]
'''
BESIDE = """
def circle(size):
    return size * 3
"""


def version(folder: Path, text: str = FILE, beside: str = BESIDE) -> str:
    """That of a task whose file has this text, beside a module with that one."""
    folder.mkdir()
    (folder / "rows.py").write_text(text)
    (folder / "shapes.py").write_text(beside)
    spec = TaskSpec(name="rows", file=str(folder / "rows.py"), global_batch_size=1, learning_rate=1.0)
    with mock.patch.dict(sys.modules), mock.patch.object(sys, "path", [*sys.path]):
        return version_of(task_of(spec))


def test_what_prepare_reaches_makes_other_data_and_nothing_else_does(tmp_path: Path) -> None:
    before = version(tmp_path / "before")
    reached = {"SIZE = 8": "SIZE = 9", "rows = [1]": "rows = [2]", "size * 3": "size * 4", "count = 3": "count = 5"}
    beside = {'"""Rows."""': '"""Others."""  # a comment', "width = 4": "width = 5"}
    for number, (old, new) in enumerate((reached | beside).items()):
        other = version(tmp_path / str(number), FILE.replace(old, new), BESIDE.replace(old, new))
        assert (other != before) is (old in reached), new
