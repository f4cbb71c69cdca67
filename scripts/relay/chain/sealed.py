"""What makes a folder a whole checkpoint, and which ones are sound; the folder in which a chain keeps its checkpoints.

A checkpoint is the folder `step-{n}`. It is written under another name, and renamed when it is whole. Its manifest,
which is written last, lists every other file with its size and SHA-256. Needs no torch.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from . import writers
from .files import HeldError, described, exclusive, if_dead, remove, sync, write_json
from .telling import ChainError, say

MANIFEST = "manifest.json"
FORMAT = 1
KEPT = 2
PARTIAL = ".partial-"  # begins the names of what is not whole yet
REPLACED = ".replaced-"  # and of what is about to be removed
Damage = Callable[[Path], str | None]  # what is wrong with a checkpoint, in one line
Tell = Callable[[str], None]
_say_once = cache(say)  # `reached` opens a folder before `resume` does
AWAY = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO)  # what a shared disk says, also for a moment
AWAY_SECONDS = 5.0
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


def seal(place: Path, step: int, files: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Make a checkpoint's files durable and its user's alone, and write its manifest. Raises OSError.

    `files` are all of them, as `described`; `facts` are what else the manifest says.
    """
    wait_for(place, files)
    for each in files:
        sync(place / each)
    write_json(place / MANIFEST, {"format": FORMAT, "step": step, **facts, "files": files})
    writers.keep_to_owner(place)
    for path in [*place.rglob("*"), place]:
        if path.is_dir():
            sync(path)


def publish(partial: Path, place: Path) -> None:
    """Give a folder that is sealed its name as a checkpoint. Raises OSError.

    An older one of the same step goes after that: it may be the only one.
    """
    older = place.with_name(f"{REPLACED}{place.name}")
    remove(older, surely=True)
    if place.exists():
        place.rename(older)
    partial.rename(place)
    sync(place.parent)
    remove(older)


def steps(folder: Path, prefix: str = "step-") -> list[int]:
    """The steps of which a checkpoint is there, damaged or not; the newest first. A copy of another name is none."""
    numbers = (place.name.removeprefix(prefix) for place in folder.glob(f"{prefix}*"))
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def complete(folder: Path) -> list[int]:
    """The steps of which a checkpoint with its manifest is there; the newest first."""
    return [step for step in steps(folder) if (folder / f"step-{step}" / MANIFEST).is_file()]


def superseded(folder: Path, step: int) -> list[Path]:
    """The checkpoints that nobody needs once that of `step` is complete: all but the newest ones.

    One of a later step was damaged or left by an earlier start: it must neither push out a sound one nor be gone on
    with later.
    """
    kept = [each for each in complete(folder) if each <= step][:KEPT]
    return [folder / f"step-{each}" for each in steps(folder) if each not in kept]


def step_of(place: Path) -> str:
    """The step in the name of a checkpoint's folder."""
    return place.name.rpartition("-")[2]


def manifest(place: Path) -> dict[str, Any]:
    """What a checkpoint's manifest says. Raises OSError or ValueError where it cannot be read."""
    facts = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(facts, dict) or not isinstance(facts.get("files"), dict) or not facts["files"]:
        raise ValueError("it is no manifest")
    if facts.get("format", FORMAT) != FORMAT:
        raise ValueError(f"it has format {facts['format']}; this version reads format {FORMAT}")
    return facts


def damage(
    place: Path,
    share: int = 0,
    shares: int = 1,
    *,
    wrong: Callable[[Mapping[str, Any]], str | None] = lambda facts: None,
    again: bool = True,
) -> str | None:
    """What is wrong with a checkpoint, in one line; None where it is sound.

    Each of `shares` processes reads the files of its own share; the first looks at all names and owners. Nothing is
    parsed but the manifest, which is JSON. `wrong` says what else is wrong with the facts there. Where a shared disk is
    away, it is looked at `again`, once.
    """
    try:
        if share == 0 and (problem := writers.unsafe(place.parent, folder=True) or writers.unsafe_within(place)):
            return problem
        facts = manifest(place)
        if step_of(place) != str(facts.get("step")):
            return f"{place} holds the checkpoint of step {facts.get('step')}: it was copied there"
        if problem := wrong(facts):
            return problem
        if share == 0 and (problem := next(_wrong_names(place, facts["files"]), None)):
            return problem
        for file in sorted(facts["files"])[share::shares]:
            if described(place / file) != facts["files"][file]:
                return f"{place / file} does not have the checksum of its manifest"
    except OSError as error:
        if again and error.errno in AWAY:
            time.sleep(AWAY_SECONDS)
            return damage(place, share, shares, wrong=wrong, again=False)
        return f"{error.filename or place} cannot be read ({error.strerror or error})"
    except (ValueError, RecursionError) as error:
        return f"{place / MANIFEST} cannot be read ({error})"
    return None


def sound(places: Iterable[Path], damage_of: Damage = damage, tell: Tell = lambda _: None) -> Iterator[Path]:
    """Those of the places that hold a sound checkpoint, in their order.

    `damage_of` says what is wrong with one, as `damage` does. `tell` gets a line for each that is passed over.
    """
    for place in places:
        problem = damage_of(place)
        if problem is None:
            yield place
        else:
            tell(f"checkpoint of step {step_of(place)} is passed over: {problem}")


def _wrong_names(place: Path, files: Mapping[str, Any]) -> Iterator[str]:
    """What is missing, and what is there and in no manifest."""
    there = {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()} - {MANIFEST}
    yield from (f"{place / each} is missing" for each in sorted(set(files) - there))
    yield from (f"{place / each} is not in the manifest" for each in sorted(there - set(files)))


def remove_leftovers(folder: Path) -> None:
    """Remove what killed saves have left in a chain's folder. What was to be replaced, and was not, is back."""
    for older in folder.glob(f"{REPLACED}*"):
        with suppress(OSError):
            place = older.with_name(older.name.removeprefix(REPLACED))
            remove(older) if place.exists() else older.rename(place)
    for left in folder.glob(f"{PARTIAL}*"):
        with suppress(OSError):  # what an orphan still writes goes with the next attempt
            remove(left)


class Folder:
    """Where one chain's checkpoints lie. `rolling`: the last two are kept; else all of them."""

    def __init__(self, path: Path, *, rolling: bool = True) -> None:
        self._given, self._from, self._rolling = path, Path.cwd(), rolling

    @property
    def path(self) -> Path:
        """The folder, as it was given; also where the script has gone to another one since."""
        with suppress(OSError):  # the current one was removed
            if Path.cwd() == self._from:
                return self._given
        return self._from / self._given

    def open(self) -> TextIO:
        """Make the folder, keep every other chain out of it, and remove what killed saves have left.

        The lock ends with the process that holds the returned file. A file system without locks keeps nobody out, and
        a warning says so. Raises ChainError where another process holds the folder for a minute, or everybody may write
        to it, and OSError.
        """
        writers.make_own(self.path)
        if problem := writers.unsafe(self.path, folder=True):
            raise ChainError(problem)
        writers.tell(self.path)
        try:
            stream, locks = exclusive(self.path)
        except HeldError as held:
            who = str(held) or "another process"
            remedy = f"end it, or give another folder; {if_dead(self.path)}"
            raise ChainError(f"{self.path}: {who} trains in this folder; {remedy}") from None
        if not locks:
            _say_once(f"warning: {self.path}: this file system has no locks: train in it once at a time")
        remove_leftovers(self.path)
        return stream

    def places(self, prefix: str = "step-") -> list[Path]:
        """Where checkpoints lie, damaged ones or not; the newest first."""
        return [self.path / f"{prefix}{step}" for step in steps(self.path, prefix)]

    def reached(self) -> int:
        """The step of the newest sound checkpoint; 0 where there is none. It waits for another process as `open`."""
        with self.open():
            return next((int(step_of(place)) for place in sound(self.places())), 0)

    def place(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.path / f"step-{step}"

    def partial(self, attempt: str, step: int) -> Path:
        """Where an attempt writes a checkpoint, until it is whole. No other attempt writes there."""
        return self._from / self._given / f"{PARTIAL}{attempt}-{step}"

    def complete(self, partial: Path, step: int, files: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Make a checkpoint of what was written, and remove those that nobody needs any more. Raises OSError.

        `files` are those of all ranks, as `described`; `facts` are what else the manifest says.
        """
        seal(partial, step, files, facts)
        publish(partial, self.place(step))
        for place in superseded(self.path, step) if self._rolling else ():
            remove(place)


def of_another(facts: Mapping[str, Any], script: str, world_size: int) -> str | None:
    """Why a checkpoint with these facts in its manifest is not this script's, in words; None where it may be."""
    if script and facts["script"] and facts["script"] != script:
        return f"belongs to another script: {facts['script']}, not {script}"
    if facts["world_size"] != world_size:
        return f"is of {facts['world_size']} processes, and here are {world_size}; start {facts['world_size']}"
    return None


def newest_sound(places: Sequence[Path], damage_of: Damage = damage, *, aloud: bool = True) -> Path | None:
    """The first sound one of checkpoints, the newest first; None where there is none at all.

    `damage_of` says what is wrong with one. Says `aloud` what is passed over. Raises ChainError where none is sound.
    """
    place = next(sound(places, damage_of, lambda line: say(f"the {line}") if aloud else None), None)
    if places and place is None:
        problem = f"{places[0].parent}: no checkpoint is sound; remove the folder to start at step 0"
        raise ChainError(problem, aloud=aloud)
    return place


def newest_of(script: str, world_size: int, places: Sequence[Path], remedy: str) -> Path | None:
    """The newest sound one of a script's checkpoints; None where there is none at all. Says from where it goes on.

    Raises ChainError where none is sound, and for one of another script or number of processes, with the `remedy` for
    that.
    """
    place = newest_sound(places)
    if place:
        if wrong := of_another(manifest(place), script, world_size):
            raise ChainError(f"{place} {wrong}; {remedy}")
        writers.tell(place.parent, place)
        say(f"goes on from step {step_of(place)} ({place})")
    return place
