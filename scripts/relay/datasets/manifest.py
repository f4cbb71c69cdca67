"""The manifest of prepared data: which files they are, and their content."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from relay.base import typed
from relay.base.errors import UserError
from relay.base.files import errors_in_one_line, write_json
from relay.chain.files import all_described
from relay.spec.identity import fingerprint

MANIFEST = "manifest.json"
REMEDY = "remove the folder and prepare the dataset again"


@dataclass(frozen=True)
class File:
    """The content of a file: its size, and its SHA-256 in hex."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What lies in a folder of prepared data: each file, by its name there."""

    name: str
    version: str
    files: Mapping[str, File]

    @property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file, in hex."""
        return {name: file.sha256 for name, file in self.files.items()}


def describe(directory: Path) -> dict[str, File]:
    """What a manifest says of all files in a folder. Raises OSError."""
    return {name: File(**record) for name, record in all_described(directory).items() if Path(name).name != MANIFEST}


def digest(directory: Path) -> str:
    """12 hex digits that stand for prepared data: their files' checksums.

    From the manifest alone. Raises UserError where that cannot be read.
    """
    return fingerprint(read(Path(directory)).checksums)


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
        return typed.built(Manifest, json.loads(content))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: is not a manifest ({error}); {REMEDY}") from error
