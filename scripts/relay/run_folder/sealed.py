"""What makes a directory a sound checkpoint: a manifest of all its files, written last. Needs no torch."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json, sha256, write_json
from relay.chain.files import all_described, sync
from relay.chain.writers import keep_to_owner, unsafe_above, unsafe_within

MANIFEST = "complete.json"
SHOWN_WITHIN_SECONDS = 120.0  # NFS keeps what it knows of a folder for at most a minute, unless told otherwise


def seal(
    place: Path,
    step: int,
    world_size: int,
    parts: Iterable[str] = (),
    *,
    run: str | None = None,
    chain: Mapping[str, Any] | None = None,
) -> None:
    """Make a directory's files durable and their owner's alone, and write the manifest with the size and SHA-256 of
    each, the run that they belong to, and its chain.

    `parts` are files that some node has written there: waited for, as a network filesystem shows them late on another.
    Raises FileNotFoundError for one that does not come.
    """
    for part in parts:
        _wait_for(place / part)
    files = all_described(place)
    for name in files:
        sync(place / name)
    told = {"step": step, "world_size": world_size, "run": run, "chain": chain, "files": files}
    write_json(place / MANIFEST, told)
    keep_to_owner(place)


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


def sound(directory: Path, first: int, last: int, *, generation: str | None = None) -> Iterator[int]:
    """Steps within [first, last] of which a sound checkpoint is there, newest first; a warning for a damaged one.

    `generation` is the start of the run that they have to be of, where that is known. Raises UserError where another
    user could have put one there.
    """
    if complete(directory) and (problem := unsafe_above(directory)):
        raise UserError(problem)
    for step in complete(directory):
        if not first <= step <= last:
            continue
        problem = damage(directory / f"step-{step}", generation=generation)
        if problem is None:
            yield step
        else:
            print(f"warning: checkpoint of step {step} is passed over: {problem}", flush=True)


def damage(place: Path, *, of_run: str | None = None, generation: str | None = None) -> str | None:
    """What is wrong with a checkpoint's directory, in one line; None where it is sound.

    `of_run` is the run that it has to be of, where that is not the folder in which it lies; `generation` the start of
    that run, where it is known.

    Only the manifest has been parsed then, which is JSON: nothing that could run code.
    """
    try:
        if problem := unsafe_within(place):
            return problem
        told = manifest(place)
        if problem := _of_another(place, told, of_run or place.parent.name, generation):
            return problem
        expected = told["files"]
        found = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()} - {MANIFEST}
        if not expected:
            return f"{place / MANIFEST} lists no files"
        if missing := sorted(set(expected) - found):
            return f"{place / missing[0]} is missing"
        if more := sorted(found - set(expected)):
            return f"{place / more[0]} is not in the manifest"
        for name in sorted(expected):
            path = place / name
            if path.stat().st_size != expected[name]["bytes"] or sha256(path) != expected[name]["sha256"]:
                return f"{path} does not have the checksum of its manifest"
    except OSError as error:
        return f"{error.filename or place} cannot be read ({error.strerror or error})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{place / MANIFEST} cannot be read ({error})"
    return None


def manifest(place: Path) -> dict[str, Any]:
    """What a checkpoint's manifest says. Raises OSError or ValueError where it cannot be read."""
    told = read_json(place / MANIFEST)
    if not isinstance(told, dict) or not isinstance(told.get("files"), dict):
        raise ValueError("it is no manifest")
    return told


def _of_another(place: Path, told: Mapping[str, Any], run: str, generation: str | None) -> str | None:
    """Whether a manifest is of another step than the directory's name says, of another run, or of another start."""
    step = place.name.removeprefix("step-")
    if step.isdecimal() and int(step) != told["step"]:
        return f"{place} holds the checkpoint of step {told['step']}: it was copied there"
    if told.get("run") not in (None, run):
        return f"{place} holds a checkpoint of run {told['run']}: it was copied there"
    start = (told.get("chain") or {}).get("generation")  # none where it was adopted
    if None not in (start, generation) and start != generation:
        return f"{place} holds a checkpoint of another start of the run: it was copied there"
    return None
