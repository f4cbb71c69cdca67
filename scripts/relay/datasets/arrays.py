"""The four arrays of a prepared dataset, in memory and as files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
NAMES = tuple(f"{split}-{part}" for split in SPLITS for part in ("inputs", "targets"))
FILES = tuple(f"{name}.npy" for name in NAMES)
# `train-inputs`, `train-targets`, `test-inputs` and `test-targets`.
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
