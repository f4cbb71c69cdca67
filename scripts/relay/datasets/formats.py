"""The two file formats of the public datasets, from verified bytes to arrays.

Read here and not by torchvision's dataset classes: the login node's environment need not hold torch, and
importing torchvision beside a torch of another build fails. Checksums were verified before anything below
sees a byte.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from relay.base.errors import UserError

# The pickles of CIFAR-10 name `numpy.core.multiarray._reconstruct`, a module that numpy has since made
# private: this is
# that function, by a way that every version offers.
_RECONSTRUCT = np.empty(0, np.uint8).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
_UNSIGNED_BYTE = 0x08

Arrays = dict[str, np.ndarray]


def arrays_from(format_name: str, members: Mapping[str, bytes]) -> Arrays:
    """`train-inputs` … `test-targets` from the members of a source. Raises UserError if a file is not of
    its format.
    """
    return {"idx": _from_idx, "cifar": _from_cifar}[format_name](members)


def _from_idx(members: Mapping[str, bytes]) -> Arrays:
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(f"{prefix}-images-idx3-ubyte", members, dimensions=3)
        labels = read_idx(f"{prefix}-labels-idx1-ubyte", members, dimensions=1)
        arrays[f"{split}-inputs"] = images[:, np.newaxis]
        arrays[f"{split}-targets"] = labels.astype(np.int64)
    return arrays


def read_idx(name: str, members: Mapping[str, bytes], dimensions: int) -> np.ndarray:
    """The uint8 array of one idx file: two zeros, the type, the number of dimensions, big-endian sizes, the
    data.
    """
    content = members[name]
    header_bytes = 4 + 4 * dimensions
    if len(content) < header_bytes or content[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
        expected = bytes((0, 0, _UNSIGNED_BYTE, dimensions)).hex()
        raise UserError(f"{name}: is not an idx file: begins with {content[:4].hex()}, expected {expected}")
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    values = np.frombuffer(content, np.uint8, offset=header_bytes)
    if values.size != np.prod(shape):
        raise UserError(f"{name}: holds {values.size:,} values, its header says {shape}")
    return values.reshape(shape)


def _from_cifar(members: Mapping[str, bytes]) -> Arrays:
    arrays: Arrays = {}
    training = sorted(name for name in members if name.startswith("data_batch_"))
    for split, names in (("train", training), ("test", ["test_batch"])):
        batches = [read_cifar_batch(name, members[name]) for name in names]
        arrays[f"{split}-inputs"] = np.concatenate([images for images, _ in batches])
        arrays[f"{split}-targets"] = np.concatenate([labels for _, labels in batches])
    return arrays


def read_cifar_batch(name: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (N, 3, 32, 32) and labels int64 (N,) of one pickled batch."""
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        images = np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(batch["labels"], dtype=np.int64)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UserError(f"{name}: is not a CIFAR-10 batch: {error}") from error
    if len(images) != len(labels):
        raise UserError(f"{name}: holds {len(images):,} images and {len(labels):,} labels")
    return images, labels


class _ArraysOnly(pickle.Unpickler):
    """A pickle can call any function; this one reaches only what an array of numbers needs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise UserError(f"a CIFAR-10 batch asks for {module}.{name}; allowed are arrays of numbers only")
        return _ALLOWED[module, name]
