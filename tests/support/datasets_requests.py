"""What the tests of the dataset stage ask for, and what they look at.

A plugin of pytest for its fixtures, and a module that the tests import (hence PYTEST_DONT_REWRITE).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datasets_server import StandIn, small_cifar, small_mnist
from relay.base.errors import UserError
from relay.datasets import arrays, generate, verified
from relay.datasets.download import Patience
from relay.datasets.manifest import Manifest
from relay.datasets.prepare import prepare
from relay.datasets.public import members
from relay.spec.tasks import DatasetSpec
from relay.tasks import _images

HASTY = Patience(attempts=3, first_wait_seconds=0.01, longest_wait_seconds=0.02, progress_bytes=1000)
FILES = ("train-inputs.npy", "train-targets.npy", "test-inputs.npy", "test-targets.npy")
DIGITS = DatasetSpec(name="digits", version="1", train_count=1437, test_count=360)
SYNTHETIC = DatasetSpec(name="synthetic", version="1", train_count=2500, test_count=300)


def make_digits(folder: Path) -> None:
    """What the tasks on digits make."""
    _images.save(generate.digits(DIGITS.test_count), folder)


def make_synthetic(folder: Path, test_count: int = SYNTHETIC.test_count) -> None:
    """Images of 3 x 16 x 20 pixels in five classes."""
    generate.write_synthetic(folder, (3, 16, 20), 5, SYNTHETIC.train_count, test_count)


def prepare_public(stand_in: StandIn, output: Path, root: Path | None = None, mirror: str | None = None) -> Manifest:
    """Prepare the images of a public dataset, as the tasks on MNIST and CIFAR-10 do."""
    its = stand_in.source
    return prepare(
        stand_in.request, lambda folder: _images.save(its.read(members(its, root, mirror, HASTY)), folder), output
    )


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of the tests are on this machine; no proxy is asked for them."""
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture(params=[small_mnist, small_cifar], ids=["mnist", "cifar10"])
def stand_in(request: pytest.FixtureRequest) -> StandIn:
    """A small dataset in the format of a public one."""
    return request.param()


def laid_out(stand_in: StandIn, root: Path) -> Path:
    """The stand-in as torchvision lays it out; returns the folder of its members."""
    folder = root / stand_in.source.folder
    folder.mkdir(parents=True)
    for name, content in stand_in.members.items():
        (folder / name).write_bytes(content)
    return folder


def assert_is(directory: Path, stand_in: StandIn) -> None:
    verified.check(directory)
    for split in ("train", "test"):
        inputs, targets = arrays.load(directory, split)
        assert (inputs.dtype, targets.dtype) == (np.uint8, np.int64)
        np.testing.assert_array_equal(inputs, stand_in.arrays[f"{split}-inputs"])
        np.testing.assert_array_equal(targets, stand_in.arrays[f"{split}-targets"])


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
