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
from .files import remove
from .sealed import Damage, damage, manifest


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

    def places(self, prefix: str = "step-") -> list[Path]:
        """Where checkpoints lie, damaged ones or not; the newest first."""
        return [self.path / f"{prefix}{step}" for step in sealed.steps(self.path, prefix)]

    def reached(self) -> int:
        """The step of the newest sound checkpoint; 0 where there is none. It waits for another process as `open`."""
        with self.open():
            return next((int(sealed.step_of(place)) for place in sealed.sound(self.places())), 0)

    def place(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.path / f"step-{step}"

    def partial(self, attempt: str, step: int) -> Path:
        """Where an attempt writes a checkpoint, until it is whole. No other attempt writes there."""
        return self._from / self._given / f".partial-{attempt}-{step}"

    def complete(self, partial: Path, step: int, files: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Make a checkpoint of what was written, and keep the last two. Raises OSError.

        `files` are those of all ranks, as `described`; `facts` are what else the manifest says.
        """
        sealed.publish(partial, self.place(step), step, files, facts)
        for place in sealed.superseded(self.path, step):
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
    place = next(sealed.sound(places, damage_of, lambda line: say(f"the {line}") if aloud else None), None)
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
        say(f"goes on from step {sealed.step_of(place)} ({place})")
    return place
