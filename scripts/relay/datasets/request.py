"""What is asked of the dataset stage, checked before anything is read, downloaded or written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from relay.base.errors import UserError

KINDS = ("images", "vectors", "text")
_FORMS = {"images": "channels,height,width", "vectors": "features", "text": "length"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One dataset to prepare.

    `shape` is one sample's: (channels, height, width) of uint8 images, (features,) of float32 vectors, or (length,) of
    a text's uint8 bytes. `classes` is None for regression. Raises UserError where a field does not make sense.
    """

    name: str
    version: str
    kind: str
    shape: tuple[int, ...]
    classes: int | None
    train_count: int
    test_count: int

    def __post_init__(self) -> None:
        for key in ("name", "version"):
            if not isinstance(getattr(self, key), str) or not getattr(self, key):
                raise UserError(f"{key}: {getattr(self, key)!r} must be a non-empty text")
        if self.kind not in KINDS:
            raise UserError(f"kind: {self.kind!r} is unknown; allowed are {', '.join(KINDS)}")
        dimensions = 3 if self.kind == "images" else 1
        if len(self.shape) != dimensions or not all(_is_count(size) for size in self.shape):
            form = _FORMS[self.kind]
            raise UserError(f"shape: {list(self.shape)} must be {dimensions} positive whole number(s) ({form})")
        for key in ("train_count", "test_count"):
            if not _is_count(getattr(self, key)):
                raise UserError(f"{key}: {getattr(self, key)!r} must be a whole number of at least 1")
        if self.kind == "vectors" and self.classes is not None:
            raise UserError(f"classes: {self.classes!r} must be left out: vectors are regression data")
        if self.kind == "text" and self.classes != 256:
            raise UserError(f"classes: {self.classes!r} must be 256: a text is bytes")
        if self.kind == "images" and not (_is_count(self.classes) and (self.classes or 0) >= 2):
            raise UserError(f"classes: {self.classes!r} must be a whole number of at least 2")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Request:
        """A request from plain data, as JSON gives it. Raises UserError for unknown or missing keys."""
        allowed = [field.name for field in fields(cls)]
        for key in values:
            if key not in allowed:
                raise UserError(f"{key}: unknown key of a dataset; allowed are {', '.join(allowed)}")
        for key in allowed:
            if key not in values:
                raise UserError(f"{key}: missing; a dataset needs {', '.join(allowed)}")
        shape = values["shape"]
        if not isinstance(shape, list | tuple):
            raise UserError(f"shape: {shape!r} must be a list of whole numbers")
        return cls(**{**values, "shape": tuple(shape)})

    @classmethod
    def from_file(cls, path: Path) -> Request:
        """A request from a JSON file. Raises UserError, which names the file."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"{path}: is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise UserError(f"{path}: holds a {type(values).__name__}, expected an object describing a dataset")
        try:
            return cls.from_mapping(values)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
