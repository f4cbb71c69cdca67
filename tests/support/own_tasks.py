"""Tasks without a plan: of files and built-in ones, for a few steps, and their data."""

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from relay.spec.tasks import DatasetSpec, TaskSpec
from relay.task.bound import BoundTask
from relay.task.load import task_class, task_of
from relay.task.prepared import version_of
from relay.task.user import options_of
from shared import once
from short_tasks import at_hand, prepare_at_hand, shipped

STEPS = 5
OWN = Path(__file__).resolve().parents[1] / "tasks"  # files as a user writes them
DESCRIBED = ("unit", "units_per_sample", "global_batch_size", "learning_rate", "epochs", "schedule", "small")


def spec(name: str, **changes: Any) -> TaskSpec:
    """A built-in task by its name, or the one of a file's path; `changes` are values of the specification or options.

    A GPT comes narrow.
    """
    named = TaskSpec(
        name=Path(name).stem, file=name if name.endswith(".py") else "", global_batch_size=1, learning_rate=1.0
    )
    kind = task_class(named)
    options = options_of(kind) | ({"width": 16} if name.startswith("gpt") else {})
    options |= {key: changes.pop(key) for key in list(changes) if key in options}
    described = {key: getattr(kind(), key) for key in DESCRIBED}  # of an object: some are properties
    if not named.file:
        card = shipped(name).task
        described |= {"optimizer": card.optimizer, "metrics": card.metrics, "card": card.card}
    return replace(named, **described | {"options": options} | changes)


@cache
def _place() -> Path:
    """A folder of this process, for prepared data."""
    made = Path(tempfile.mkdtemp(prefix="relay-data-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def data_of(its: TaskSpec, place: Path | None = None) -> DatasetSpec:
    """Prepares a task's data below a folder, once, without the network; returns what they are."""
    place = place or _place()
    own = task_of(its)
    known = DatasetSpec(name=own.data or its.name, version=version_of(own), train_count=0, test_count=0)
    bare = at_hand(its, known)
    folder = once(place / bare.directory_name, lambda empty: prepare_at_hand(its, bare, empty))
    train, test = own.datasets(folder)
    return replace(bare, train_count=len(train), test_count=len(test))


def bound(its: TaskSpec, precision: str = "fp64", folder: Path | None = None, **settings: Any) -> BoundTask:
    """The task at the start of a few steps; `folder` has its prepared data."""
    return BoundTask(its, 5, precision, 10, STEPS, folder=folder, **settings)


def task(its: TaskSpec, precision: str = "fp64") -> BoundTask:
    """The same with its data, which this process makes once."""
    return bound(its, precision, _place() / data_of(its).directory_name)
