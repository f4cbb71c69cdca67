"""The manifest of a prepared dataset, and how jobs read one. Needs numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from relay.base.errors import UserError
from relay.base.files import sha256, write_json
from relay.datasets.arrays import FILES, SPLITS, Split
from relay.spec.dataset import DatasetSpec
from relay.spec.identity import fingerprint

MANIFEST = "manifest.json"
_REMEDY = "remove the folder and prepare the dataset again"


@dataclass(frozen=True)
class FileRecord:
    """One array's file."""

    size_bytes: int
    sha256: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Manifest(DatasetSpec):
    """What a prepared dataset is.

    `mean` and `std` are of the training inputs, as the dataset's kind normalises by them: by channel for images scaled
    to 0 … 1; None where it does not. `source` says where the data came from: an address, a path, scikit-learn, a file's
    name, or "generated".
    """

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
            if full and (found := sha256(path)) != record.sha256:
                raise UserError(f"{path}: corrupted: SHA-256 is {found}, expected {record.sha256}; {_REMEDY}")
        except UserError:
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UserError(f"{path}: cannot be read: {reason}; {_REMEDY}") from error
    return manifest


def load_split(directory: Path | str, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a split, memory-mapped and read-only; their kind's file says their types and shapes.

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
    for name in FILES:
        path = directory / name
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        records[name] = FileRecord(path.stat().st_size, sha256(path), array.shape, str(array.dtype))
    return records


def digest(directory: Path | str) -> str:
    """12 hex digits that stand for a prepared dataset: its files' checksums and how its inputs are normalised.

    From the manifest alone. Raises UserError where that cannot be read.
    """
    manifest = _read(Path(directory) / MANIFEST)
    files = {name: record.sha256 for name, record in manifest.files.items()}
    return fingerprint([files, manifest.mean, manifest.std])


def write(directory: Path, manifest: Manifest) -> None:
    """Writes `manifest.json` and waits until it is on the disk. Raises OSError."""
    write_json(directory / MANIFEST, asdict(manifest))


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
        if set(files) != set(FILES):
            raise UserError(f"{path}: lists {', '.join(sorted(files))}, expected {', '.join(FILES)}; {_REMEDY}")
        for key in ("shape", "mean", "std"):
            values[key] = None if values[key] is None else tuple(values[key])
        return Manifest(**{**values, "files": files})
    except (KeyError, TypeError, AttributeError) as error:
        expected = ", ".join(field.name for field in fields(Manifest))
        raise UserError(f"{path}: is not a manifest ({error}); expected {expected}; {_REMEDY}") from error
