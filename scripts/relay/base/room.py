"""Small files that have to be told although the results have no room for them: on a full or read-only disk.

Each then goes to the user's home, or else to the node's temporary folder, under a name that is made from its own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.base.files import write_json


def places(folder: Path) -> Iterator[Path]:
    """The folder itself, and the folders that stand for it where it has no room."""
    yield folder
    name = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    with suppress(RuntimeError):  # a user without a home
        yield Path.home() / ".cache" / "torch-relay" / name
    yield Path(tempfile.gettempdir()) / f"relay-{os.getuid()}" / "told" / name


def write(path: Path, value: Any) -> Path | None:
    """Write JSON, in the first place that takes it; None, and a line on stderr, where none does."""
    reason = ""
    for folder in places(path.parent):
        try:
            if folder != path.parent:
                _make_private(folder)
            write_json(folder / path.name, value)
            return folder / path.name
        except OSError as error:
            reason = reason or error.strerror or str(error)
    with suppress(OSError):
        print(f"{path}: cannot be written: {reason}", file=sys.stderr, flush=True)
    return None


def refused(folder: Path, size_bytes: int = 2**20) -> OSError | None:
    """What the folder's disk says to a file of this size; None where it takes it, and nothing is left of it then."""
    path = folder / f".room-{os.getpid()}"
    try:
        with path.open("wb") as stream:
            stream.write(bytes(size_bytes))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            path.unlink()
    return None


def found(folder: Path, pattern: str) -> list[Path]:
    """The files of a name, wherever there was room for them. Those of other users are left out."""
    return [path for place in places(folder) for path in sorted(place.glob(pattern)) if place == folder or _own(place)]


def forget(folder: Path, pattern: str) -> None:
    """Remove the files of a name, wherever they are, as far as that can be done."""
    for path in found(folder, pattern):
        with suppress(OSError):
            path.unlink()


def _make_private(folder: Path) -> None:
    """Make a folder that is the user's alone. Raises OSError where another user has made it."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _own(folder):
        raise PermissionError(f"{folder} is not this user's alone")


def _own(folder: Path) -> bool:
    """Whether a folder, and those above it that are the project's, are the user's and closed to others' writing."""
    shared = Path(tempfile.gettempdir())
    above = folder.parents[: folder.parents.index(shared)] if shared in folder.parents else ()
    try:
        found = [path.lstat() for path in (folder, *above)]
    except OSError:
        return False
    return all(stat.S_ISDIR(s.st_mode) and s.st_uid == os.getuid() and not s.st_mode & 0o022 for s in found)
