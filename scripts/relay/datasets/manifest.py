"""The manifest of prepared data: which files they are, and their content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import errors_in_one_line, sha256, write_json
from relay.spec.identity import fingerprint

MANIFEST = "manifest.json"
REMEDY = "remove the folder and prepare the dataset again"


@dataclass(frozen=True)
class FileRecord:
    """One file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What lies in a folder of prepared data: files by their names relative to it."""

    name: str
    version: str
    files: Mapping[str, FileRecord]


def describe(directory: Path) -> dict[str, FileRecord]:
    """The records of all files in a folder. Raises OSError."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != MANIFEST)
    return {str(path.relative_to(directory)): FileRecord(path.stat().st_size, sha256(path)) for path in files}


def digest(directory: Path) -> str:
    """12 hex digits that stand for prepared data: their files' checksums.

    From the manifest alone. Raises UserError where that cannot be read.
    """
    return fingerprint({name: record.sha256 for name, record in read(Path(directory)).files.items()})


def write(directory: Path, manifest: Manifest) -> None:
    """Writes `manifest.json` and waits until it is on the disk. Raises OSError."""
    write_json(directory / MANIFEST, asdict(manifest))


def read(directory: Path) -> Manifest:
    """The manifest of a folder. Raises UserError."""
    path = directory / MANIFEST
    with errors_in_one_line(path, "cannot be read", REMEDY):
        if not path.exists():
            raise UserError(f"{path}: is missing; the dataset is not prepared")
        content = path.read_bytes()
    try:
        values: dict[str, Any] = json.loads(content)
        return Manifest(**{**values, "files": {name: FileRecord(**each) for name, each in values["files"].items()}})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = ", ".join(field.name for field in fields(Manifest))
        raise UserError(f"{path}: is not a manifest ({error}); expected {expected}; {REMEDY}") from error
