"""The manifest of a prepared dataset, and how jobs read one. Needs numpy alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relay.base.errors import UserError
from relay.datasets.files import sha256_of

MANIFEST = "manifest.json"
Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
ARRAYS = tuple(f"{split}-{part}.npy" for split in SPLITS for part in ("inputs", "targets"))
_CHUNK_BYTES = 1 << 24
_REMEDY = "remove the folder and prepare the dataset again"


@dataclass(frozen=True)
class FileRecord:
    """One array's file."""

    size_bytes: int
    sha256: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a prepared dataset is. `shape` is one sample's; `classes` is None for regression.

    `mean` and `std` are per channel, over all training images scaled to 0 … 1 (None for vectors and text).
    `source` says where the data came from: an address, a path, scikit-learn, a file's name, or "generated".
    """

    name: str
    version: str
    kind: str
    shape: tuple[int, ...]
    classes: int | None
    train_count: int
    test_count: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    source: str
    files: Mapping[str, FileRecord]


def verify(directory: Path | str, full: bool = False) -> Manifest:
    """The manifest, after comparing it with the files: sizes, shapes and types; with `full`, SHA-256 too.

    Raises UserError, naming the file, what was found and what was expected.
    """
    directory = Path(directory)
    manifest = _read(directory / MANIFEST)
    for name, record in manifest.files.items():
        path = directory / name
        try:
            size_bytes = path.stat().st_size
            if size_bytes != record.size_bytes:
                raise UserError(f"{path}: {size_bytes:,} bytes, the manifest says {record.size_bytes:,}; {_REMEDY}")
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if (array.shape, str(array.dtype)) != (record.shape, record.dtype):
                expected = f"{record.dtype} {list(record.shape)}"
                raise UserError(f"{path}: is {array.dtype} {list(array.shape)}, expected {expected}; {_REMEDY}")
            if full and (found := sha256_of(path)) != record.sha256:
                raise UserError(f"{path}: corrupted: SHA-256 is {found}, expected {record.sha256}; {_REMEDY}")
        except UserError:
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UserError(f"{path}: cannot be read: {reason}; {_REMEDY}") from error
    return manifest


def load_split(directory: Path | str, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a split, memory-mapped and read-only.

    Images are uint8 (N, channels, height, width) with targets int64 (N,); vectors are float32 (N, features)
    with targets float32 (N, 1); text is uint8 (N, length) with targets int64 (N, length).
    Raises UserError if a file is missing, truncated or not an array.
    """
    if split not in SPLITS:
        raise UserError(f"split: {split!r} is unknown; allowed are {', '.join(SPLITS)}")
    arrays = []
    for part in ("inputs", "targets"):
        path = Path(directory) / f"{split}-{part}.npy"
        try:
            arrays.append(np.load(path, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError) as error:
            # numpy finds a truncated file by mapping more than it holds, and says so in its own words.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UserError(f"{path}: cannot be read: {reason}; {_REMEDY}") from error
    inputs, targets = arrays
    if len(inputs) != len(targets):
        raise UserError(f"{path}: holds {len(targets):,} targets for {len(inputs):,} inputs; {_REMEDY}")
    return inputs, targets


def describe(directory: Path) -> dict[str, FileRecord]:
    """The records of the four arrays in a folder. Raises OSError."""
    records = {}
    for name in ARRAYS:
        path = directory / name
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        records[name] = FileRecord(path.stat().st_size, sha256_of(path), array.shape, str(array.dtype))
    return records


def write(directory: Path, manifest: Manifest) -> None:
    """Writes `manifest.json` and waits until it is on the disk. Raises OSError."""
    with (directory / MANIFEST).open("w", encoding="utf-8") as stream:
        json.dump(asdict(manifest), stream, indent=2)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation per channel of uint8 images (N, C, H, W), scaled to 0 … 1.

    Summed as whole numbers: the result does not depend on the order or the machine.
    """
    channels = images.shape[1]
    chunk_rows = max(1, _CHUNK_BYTES // (images[0].size * 2))
    total, squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    for start in range(0, len(images), chunk_rows):
        chunk = images[start : start + chunk_rows].astype(np.uint16)  # 255² fits
        total += chunk.sum(axis=(0, 2, 3), dtype=np.int64)
        squares += np.square(chunk).sum(axis=(0, 2, 3), dtype=np.int64)
    count = images.size // channels
    mean = total / count
    variance = squares / count - mean**2
    return tuple((mean / 255).tolist()), tuple((np.sqrt(np.maximum(variance, 0)) / 255).tolist())


def _read(path: Path) -> Manifest:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; the dataset is not prepared") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON: {error}; {_REMEDY}") from error
    try:
        files = {
            name: FileRecord(**{**record, "shape": tuple(record["shape"])}) for name, record in values["files"].items()
        }
        if set(files) != set(ARRAYS):
            raise UserError(f"{path}: lists {', '.join(sorted(files))}, expected {', '.join(ARRAYS)}; {_REMEDY}")
        for key in ("shape", "mean", "std"):
            values[key] = None if values[key] is None else tuple(values[key])
        return Manifest(**{**values, "files": files})
    except (KeyError, TypeError, AttributeError) as error:
        expected = ", ".join(field.name for field in fields(Manifest))
        raise UserError(f"{path}: is not a manifest ({error}); expected {expected}; {_REMEDY}") from error
