"""What makes a folder a whole checkpoint: a manifest of all its other files, written last. Needs no torch."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import writers
from .files import described, sync, write_json

MANIFEST = "manifest.json"
FORMAT = 1
SHOWN_WITHIN_SECONDS = 120.0  # NFS keeps what it knows of a folder for at most a minute, unless told otherwise


def wait_for(place: Path, names: Iterable[str]) -> None:
    """Wait for files that some node has written: a network file system shows them late on another.

    Raises FileNotFoundError for one that does not come.
    """
    deadline = time.monotonic() + SHOWN_WITHIN_SECONDS
    for path in (place / name for name in names):
        while not path.is_file():
            if time.monotonic() > deadline:
                raise FileNotFoundError(errno.ENOENT, "another node has written it, but it is not seen here", str(path))
            time.sleep(0.5)


def seal(place: Path, step: int, files: Mapping[str, Any], told: Mapping[str, Any], name: str = MANIFEST) -> None:
    """Make a checkpoint's files durable and its user's alone, and write its manifest. Raises OSError.

    `files` are all of them, as `described`; `told` is what else the manifest says, and `name` its file's.
    """
    wait_for(place, files)
    for each in files:
        sync(place / each)
    write_json(place / name, {"format": FORMAT, "step": step, **told, "files": files})
    writers.keep_to_owner(place)
    for path in [*place.rglob("*"), place]:
        if path.is_dir():
            sync(path)


def steps(folder: Path, prefix: str = "step-") -> list[int]:
    """The steps of which a checkpoint is there, damaged or not; the newest first. A copy of another name is none."""
    found = (place.name.removeprefix(prefix) for place in folder.glob(f"{prefix}*"))
    return sorted((int(number) for number in found if number.isdecimal()), reverse=True)


def manifest(place: Path, name: str = MANIFEST) -> dict[str, Any]:
    """What a checkpoint's manifest says. Raises OSError or ValueError where it cannot be read."""
    told = json.loads((place / name).read_text(encoding="utf-8"))
    if not isinstance(told, dict) or not isinstance(told.get("files"), dict) or not told["files"]:
        raise ValueError("it is no manifest")
    if told.get("format", FORMAT) != FORMAT:
        raise ValueError(f"it has format {told['format']}; this version reads format {FORMAT}")
    return told


def damage(place: Path, share: int = 0, shares: int = 1, name: str = MANIFEST) -> str | None:
    """What is wrong with a checkpoint, in one line; None where it is sound.

    Each of `shares` processes reads the files of its own share. Nothing is parsed but the manifest, which is JSON.
    """
    try:
        if problem := writers.unsafe(place.parent, folder=True) or writers.unsafe_within(place):
            return problem
        told = manifest(place, name)
        if place.name.rpartition("-")[2] != str(told.get("step")):
            return f"{place} holds the checkpoint of step {told.get('step')}: it was copied there"
        if problem := next(_wrong_names(place, told["files"], name), None):
            return problem
        for file in sorted(told["files"])[share::shares]:
            if described(place / file) != told["files"][file]:
                return f"{place / file} does not have the checksum of its manifest"
    except OSError as error:
        return f"{error.filename or place} cannot be read ({error.strerror or error})"
    except (ValueError, RecursionError) as error:
        return f"{place / name} cannot be read ({error})"
    return None


def _wrong_names(place: Path, files: Mapping[str, Any], name: str) -> Iterator[str]:
    """What is missing, and what is there and in no manifest."""
    found = {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()} - {name}
    yield from (f"{place / each} is missing" for each in sorted(set(files) - found))
    yield from (f"{place / each} is not in the manifest" for each in sorted(found - set(files)))
