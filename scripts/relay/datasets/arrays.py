"""Splits of samples as arrays, in memory and as files."""

from pathlib import Path
from typing import Literal

import numpy as np

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
# `train-inputs`, `train-targets`, `test-inputs` and `test-targets`; without targets where there are none.
Arrays = dict[str, np.ndarray]


def save(arrays: Arrays, directory: Path) -> None:
    """Write each array to a file of its name. Raises OSError."""
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)


def split_by(is_test: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> Arrays:
    """The four arrays of samples of which `is_test`, bool (N,), chooses those for testing."""
    return {
        "train-inputs": inputs[~is_test],
        "train-targets": targets[~is_test],
        "test-inputs": inputs[is_test],
        "test-targets": targets[is_test],
    }


def load(directory: Path, split: Split) -> tuple[np.ndarray, ...]:
    """Inputs and targets of a split, as far as there are any; mapped, so that only what is used is read."""
    paths = [directory / f"{split}-{part}.npy" for part in ("inputs", "targets")]
    # "c": nothing is written back, and torch warns of arrays that cannot be written to.
    return tuple(np.load(path, mmap_mode="c", allow_pickle=False) for path in paths if path.is_file())
