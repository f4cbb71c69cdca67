"""A kind of dataset is one file: what the register holds, and a new kind from its file to a trained run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from relay.base.errors import UserError
from relay.datasets import catalogue, kinds
from relay.datasets.kind import Kind
from relay.datasets.kinds import text
from relay.planning import config
from relay.planning.planner import plan
from relay.spec import tasks

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "scripts" / "relay"

# A kind that differs from all others in what it stores, counts and reads: int16 signals, scaled to -1 … 1.
WAVES = '''
"""Waves: int16 signals whose class is their frequency."""

from __future__ import annotations

import numpy as np

from relay.datasets.arrays import save
from relay.datasets.kind import Kind, Known, Reader
from relay.spec.dataset import DatasetSpec


def write_sines(spec, directory):
    """Sines with one period more for each class, under a little noise."""
    generator = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", spec.train_count), ("test", spec.test_count)):
        targets = np.arange(count) % spec.classes
        times = np.arange(spec.shape[0]) / spec.shape[0]
        signals = np.sin(2 * np.pi * (targets[:, None] + 1) * times) + generator.normal(0, 0.1, (count, spec.shape[0]))
        arrays[f"{split}-inputs"] = (signals * 2**13).astype(np.int16)
        arrays[f"{split}-targets"] = targets.astype(np.int64)
    save(arrays, directory)
    return "sines"


class WaveReader(Reader):
    """Scales to -1 … 1 once, when the split is read."""

    def ahead(self, stored):
        return stored.float() / 2**13

    def sampler(self):
        return scaled


def scaled(sample):
    import torch

    return torch.from_numpy(np.array(sample)).float() / 2**13


class Waves(Kind):
    unit = "seconds"
    dimensions = ("length",)
    inputs, targets = "int16", "int64"
    reader = WaveReader
    datasets = (
        Known(
            spec=DatasetSpec(
                name="sines", version="1", kind="waves", shape=(32,), classes=4, train_count=512, test_count=64
            ),
            origin=write_sines,
        ),
    )

    def units_per_sample(self, spec):
        return 2
'''
# A task is an entry of its own: this one trains on the new kind.
TASK = """
TASKS["line-of-sines"] = TaskSpec(
    name="line-of-sines",
    network="linear",
    dataset="sines",
    input_shape=(32,),
    layers=1,
    optimizer="sgd",
    learning_rate=0.1,
    global_batch_size=32,
)
"""
PLAN = """
import sys
from pathlib import Path

from relay.base.files import write_json
from relay.comparison.table import _unit
from relay.planning import config
from relay.planning.planner import plan

asked = {"task": "line-of-sines", "device": "cpu", "epochs": 4, "comparisons": [{"strategy": "cpu"}]}
(run,) = plan(config.load(asked | {"repeats": 1}), gpus=0).runs
assert "torch" not in sys.modules, "the planner imports torch"
assert _unit(run) == ("seconds", 2)
place = Path("results/runs") / run.id
run.write(place / "run.json")
write_json(place / "chain.json", {"generation": "first"})

import torch

from relay.task.data import Split, batch_indices, feeder

split = Split(Path("results/datasets/sines"), "train", run.task)
fed = [
    list(feeder(kind, split, torch.device("cpu"), torch.float64, workers).batches([batch_indices(512, 32, 0, 3)]))
    for kind, workers in (("resident", 0), ("dataloader", 1))
]
((one, same),), ((other, too),) = fed
assert one.dtype == other.dtype == torch.float64
assert torch.equal(one, other) and torch.equal(same, too) and 0.9 < one.abs().max() < 1.6
print(run.id, run.length.total_steps)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the project's code with one further file, and a task's entry."""
    unneeded = shutil.ignore_patterns("__pycache__")
    for folder in ("scripts", "workflow", "envs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unneeded)
    shutil.copy(ROOT / "Snakefile", tmp_path)
    package = tmp_path / "scripts" / "relay"
    (package / "datasets" / "kinds" / "waves.py").write_text(WAVES)
    with (package / "spec" / "tasks.py").open("a") as stream:
        stream.write(TASK)
    return tmp_path


def python(checkout: Path, *words: object) -> str:
    """What the copy's Python prints; fails with what it complains of."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=checkout,
        env=environment | {"PYTHONPATH": str(checkout / "scripts")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_kind_is_one_file_from_its_preparation_to_a_trained_run(checkout: Path) -> None:
    python(checkout, "scripts/dataset.py", "--name", "sines", "--output", "results/datasets/sines")
    assert json.loads((checkout / "results/datasets/sines/manifest.json").read_text())["source"] == "sines"

    run, steps = python(checkout, "-c", PLAN).split()
    python(checkout, "scripts/train.py", "--run", run, "--first", 0, "--last", steps)
    python(checkout, "scripts/summarise.py", "--run", run)
    summary = json.loads((checkout / "results/runs" / run / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.95


def test_every_kind_and_its_datasets_hold_together() -> None:
    """An entry is of its file's kind and passes its kind's checks; the class has all that is asked of a kind."""
    assert set(kinds.names()) == {path.stem for path in (PACKAGE / "datasets/kinds").glob("[a-z]*.py")}
    for name in kinds.names():
        kind = kinds.load(name)
        assert all((kind.dimensions, kind.inputs, kind.targets, kind.unit)), name
        assert kind.datasets, name
        for entry in kind.datasets:
            assert catalogue.dataset(entry.spec.name) == entry.spec
            kind.check(entry.spec)


def test_every_task_fits_its_dataset() -> None:
    for task in tasks.TASKS.values():
        spec = catalogue.dataset(task.dataset)
        kinds.load(spec.kind).check_fit(spec.shape, task)


@pytest.mark.parametrize("task", ["linear-random10", "gpt-tiny", "lenet-digits"])
def test_a_dataset_that_does_not_fit_is_told_when_it_is_planned(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, task, replace(tasks.TASKS[task], input_shape=(3, 5, 7)))
    asked = {"task": task, "device": "cpu", "comparisons": [{"strategy": "cpu"}]}
    with pytest.raises(UserError, match=rf"task {task}: .*\(3, 5, 7\)"):
        plan(config.load(asked), gpus=0)


def test_two_datasets_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = kinds.load("vectors")
    monkeypatch.setattr(type(vectors), "datasets", (*vectors.datasets, vectors.datasets[0]))
    catalogue.known.cache_clear()
    try:
        with pytest.raises(UserError, match="'random-10' is there twice"):
            catalogue.dataset("digits")
    finally:
        catalogue.known.cache_clear()


def test_an_unknown_kind_is_one_line() -> None:
    with pytest.raises(UserError, match="kind: 'sounds' is unknown; allowed are images, text, vectors"):
        kinds.load("sounds")
    assert not kinds.load("vectors").channels_last
    assert issubclass(type(kinds.load("images")), Kind)


def test_the_gates_follow_their_datasets_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind is loaded by its name, which no import shows: a gate is judged again when its file changes."""
    from relay.spec import identity

    asked = {"task": "linear-random10", "device": "cpu", "comparisons": [{"strategy": "cpu"}]}
    before = plan(config.load(asked), gpus=0)
    read, edited = identity._read, PACKAGE / "datasets" / "kinds" / "vectors.py"
    monkeypatch.setattr(identity, "_read", lambda path: read(path) + ("\nEDITED = 1\n" if path == edited else ""))
    after = plan(config.load(asked), gpus=0)
    assert set(after.gates).isdisjoint(before.gates)
    assert set(after.references).isdisjoint(before.references)
    assert [run.id for run in after.runs] == [run.id for run in before.runs]


# The text of the GPTs


def test_the_package_holds_nothing_but_python() -> None:
    others = [p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts]
    assert others == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="NOT RUN: no git checkout")
def test_git_keeps_the_texts_bytes_and_leaves_it_out_of_diffs_and_searches() -> None:
    path = text.TEXT.relative_to(ROOT)
    told = subprocess.run(
        ["git", "check-attr", "text", "diff", "linguist-generated", "--", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.split(": ")[1:] for line in told.splitlines()] == [
        ["text", "unset"],
        ["diff", "unset"],
        ["linguist-generated", "set"],
    ]
