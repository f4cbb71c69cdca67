"""The folder of a chain's checkpoints: each is complete or absent, and the last two are kept. Needs no torch.

A checkpoint is the folder `step-{n}`. It is written under another name, and renamed when it is whole. Its manifest
lists every other file with its size and SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from . import lock, sealed, writers
from .errors import ChainError, say
from .files import remove, sync
from .sealed import damage, manifest

KEPT = 2


class Folder:
    """Where one chain's checkpoints lie."""

    def __init__(self, path: Path) -> None:
        self._given, self._from = path, Path.cwd()

    @property
    def path(self) -> Path:
        """The folder, as it was given; also where the script has gone to another one since."""
        with suppress(OSError):  # the current one was removed
            if Path.cwd() == self._from:
                return self._given
        return self._from / self._given

    def open(self) -> TextIO:
        """Make the folder, keep every other chain out of it, and remove what killed saves have left.

        The lock ends with the process that holds the returned file. A file system without locks keeps nobody out.
        Raises ChainError where another process holds the folder for a minute, or everybody may
        write to it, and OSError.
        """
        writers.make_own(self.path)
        if problem := writers.unsafe(self.path, folder=True):
            raise ChainError(problem)
        writers.tell(self.path)
        try:
            stream, _ = lock.exclusive(self.path)
        except lock.HeldError as held:
            who = str(held) or "another process"
            raise ChainError(f"{self.path}: {who} trains in this folder; end it, or give another folder") from None
        for left in self.path.glob(".partial-*"):
            remove(left)
        return stream

    def steps(self) -> list[int]:
        """The steps of which a checkpoint is there, damaged or not; the newest first."""
        return sealed.steps(self.path)

    def reached(self) -> int:
        """The step of the newest sound checkpoint; 0 where there is none. It waits for another process as `open`."""
        with self.open():
            return next((step for step in self.steps() if damage(self.place(step)) is None), 0)

    def place(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.path / f"step-{step}"

    def partial(self, attempt: str, step: int) -> Path:
        """Where an attempt writes a checkpoint, until it is whole. No other attempt writes there."""
        return self._from / self._given / f".partial-{attempt}-{step}"

    def complete(self, partial: Path, step: int, files: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Make a checkpoint of what was written, and keep the last two. Raises OSError.

        `files` are those of all ranks, as `described`; `told` is what else the manifest says.
        """
        sealed.seal(partial, step, files, told)
        place = self.place(step)
        remove(place)  # a damaged one, passed over at the start
        partial.rename(place)
        sync(self.path)
        # One beyond this step was damaged, and passed over: it must not push out a sound one.
        kept = [found for found in self.steps() if found <= step][:KEPT]
        for found in self.steps():
            if found not in kept:
                remove(self.place(found))


def of_another(told: Mapping[str, Any], script: str, world_size: int) -> str | None:
    """Why a checkpoint with this manifest is not this script's, in words; None where it may be."""
    if script and told["script"] and told["script"] != script:
        return f"belongs to another script: {told['script']}, not {script}"
    if told["world_size"] != world_size:
        return f"is of {told['world_size']} processes, and here are {world_size}; start {told['world_size']}"
    return None


def whole(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The files of all ranks, as one mapping."""
    return {name: told for each in files for name, told in each.items()}


def newest_sound(places: Sequence[Path], script: str, world_size: int, remedy: str) -> Path | None:
    """The first sound one of checkpoints, the newest first; None where there is none at all.

    Says what is passed over. Raises ChainError where none is sound, and for one of another script or number of
    processes, with the `remedy` for that.
    """
    for place in places:
        step = place.name.rpartition("-")[2]
        if problem := damage(place):
            say(f"the checkpoint of step {step} is passed over: {problem}")
            continue
        if wrong := of_another(manifest(place), script, world_size):
            raise ChainError(f"{place} {wrong}; {remedy}")
        writers.tell(place.parent, place)
        say(f"goes on from step {step} ({place})")
        return place
    if places:
        raise ChainError(f"{places[0].parent}: no checkpoint is sound; remove the folder to start at step 0")
    return None
