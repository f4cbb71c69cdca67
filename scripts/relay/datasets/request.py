"""What is asked of the dataset stage, checked before anything is read, downloaded or written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.datasets import kinds
from relay.datasets.kind import is_count
from relay.spec.dataset import DatasetSpec


def check(spec: DatasetSpec) -> None:
    """Raises UserError where a value makes no sense, for any dataset or for one of this kind."""
    for key in ("name", "version"):
        if not isinstance(getattr(spec, key), str) or not getattr(spec, key):
            raise UserError(f"{key}: {getattr(spec, key)!r} must be a non-empty text")
    kind = kinds.load(spec.kind)
    for key in ("train_count", "test_count"):
        if not is_count(getattr(spec, key)):
            raise UserError(f"{key}: {getattr(spec, key)!r} must be a whole number of at least 1")
    kind.check(spec)


def from_mapping(values: Mapping[str, Any]) -> DatasetSpec:
    """A dataset from plain data, as JSON gives it. Raises UserError for unknown or missing keys."""
    allowed = [field.name for field in fields(DatasetSpec)]
    for key in values:
        if key not in allowed:
            raise UserError(f"{key}: unknown key of a dataset; allowed are {', '.join(allowed)}")
    for key in allowed:
        if key not in values:
            raise UserError(f"{key}: missing; a dataset needs {', '.join(allowed)}")
    shape = values["shape"]
    if not isinstance(shape, list | tuple):
        raise UserError(f"shape: {shape!r} must be a list of whole numbers")
    return DatasetSpec(**{**values, "shape": tuple(shape)})


def from_file(path: Path) -> DatasetSpec:
    """A dataset from a JSON file. Raises UserError, which names the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds a {type(values).__name__}, expected an object describing a dataset")
    try:
        return from_mapping(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
