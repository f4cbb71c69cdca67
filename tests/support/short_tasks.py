"""Built-in tasks with their cards and data: random images where those would have to be downloaded."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from relay.datasets import arrays
from relay.datasets.generate import write_synthetic
from relay.datasets.prepare import prepare
from relay.datasets.public import SOURCES
from relay.spec.strategy_files import typed
from relay.spec.tasks import BUILT_IN, DatasetSpec, Looked, TaskSpec
from relay.task.load import task_of
from relay.task.prepared import prepare_data
from relay.tasks import _images

#: Random samples, in place of those that are not on every machine: for training, and for testing.
SAMPLES, TEST_SAMPLES = 96, 16


def shipped(name: str) -> Looked:
    """A built-in task as it is, and its card."""
    return Looked.read(BUILT_IN / "cards" / f"{name}.json")


def looked(name: str, **options: Any) -> Looked:
    """A built-in task with these options, and its card; random data where its own would be downloaded."""
    known = shipped(name)
    known = replace(known, task=replace(known.task, options=typed(options, known.task.options)))
    return replace(known, dataset=at_hand(known.task, known.dataset))


def at_hand(task: TaskSpec, dataset: DatasetSpec) -> DatasetSpec:
    """The data; random ones of the same form where they would be downloaded."""
    if dataset.name not in SOURCES:
        return dataset
    version = f"random-{task.options.get('side', '')}"
    return replace(dataset, version=version, train_count=SAMPLES, test_count=TEST_SAMPLES)


def prepare_at_hand(task: TaskSpec, dataset: DatasetSpec, folder: Path) -> None:
    """Make the data of a task, without the network."""
    if dataset.version.startswith("random-"):
        prepare(dataset, partial(_random, task), folder)
    else:
        prepare_data(task, dataset, folder)


def _random(task: TaskSpec, folder: Path) -> None:
    own: Any = task_of(task)
    if isinstance(own, _images.Images):
        write_synthetic(folder, (own.channels, own.side, own.side), own.classes, SAMPLES, TEST_SAMPLES)
        _images.write_statistics(folder)
        return
    drawn: Callable[..., np.ndarray] = np.random.default_rng(1).random
    counts = zip(arrays.SPLITS, (SAMPLES, TEST_SAMPLES), strict=True)
    arrays.save({f"{split}-inputs": drawn((count, 784), np.float32) for split, count in counts}, folder)
