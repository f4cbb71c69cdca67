"""What makes a directory a sound checkpoint: a manifest of all its files, written last. Needs no torch."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from relay.base.files import read_json, sha256, sync_file, write_json

MANIFEST = "complete.json"
SHOWN_WITHIN_SECONDS = 120.0  # NFS keeps what it knows of a folder for at most a minute, unless told otherwise


def seal(place: Path, step: int, world_size: int, parts: Iterable[str] = ()) -> None:
    """Make a directory's files durable, and write the manifest with the size and SHA-256 of each.

    `parts` are files that some node has written there: waited for, as a network filesystem shows them late on another.
    Raises FileNotFoundError for one that does not come.
    """
    for part in parts:
        _wait_for(place / part)
    files = {}
    for path in sorted(p for p in place.rglob("*") if p.is_file()):
        sync_file(path)
        files[str(path.relative_to(place))] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    write_json(place / MANIFEST, {"step": step, "world_size": world_size, "files": files})


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + SHOWN_WITHIN_SECONDS
    while not path.is_file():
        if time.monotonic() > deadline:
            raise FileNotFoundError(errno.ENOENT, "another node has written it, but it is not seen here", str(path))
        time.sleep(0.5)


def complete(directory: Path) -> list[int]:
    """Steps of which a checkpoint `step-{n}/` is there, newest first."""
    return sorted((step for step, place in steps(directory) if (place / MANIFEST).is_file()), reverse=True)


def steps(directory: Path) -> Iterator[tuple[int, Path]]:
    """The directories `step-{n}/`, complete or not, and none of another name, such as a copy of the user's own."""
    for place in directory.glob("step-*"):
        if (number := place.name.removeprefix("step-")).isdecimal():
            yield int(number), place


def sound(directory: Path, first: int, last: int) -> Iterator[int]:
    """Steps within [first, last] of which a sound checkpoint is there, newest first; a warning for a damaged one."""
    for step in complete(directory):
        if not first <= step <= last:
            continue
        problem = damage(directory / f"step-{step}")
        if problem is None:
            yield step
        else:
            print(f"warning: checkpoint of step {step} is passed over: {problem}", flush=True)


def damage(place: Path) -> str | None:
    """What is wrong with a checkpoint's directory, in one line; None where it is sound."""
    try:
        for name, expected in read_json(place / MANIFEST)["files"].items():
            path = place / name
            if not path.is_file():
                return f"{path} is missing"
            if path.stat().st_uid != os.getuid():
                return f"{path} belongs to another user"
            if path.stat().st_size != expected["bytes"] or sha256(path) != expected["sha256"]:
                return f"{path} does not have the checksum of its manifest"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{place / MANIFEST} cannot be read ({error})"
    return None
