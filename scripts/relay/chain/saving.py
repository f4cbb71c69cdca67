"""Checkpoints: written in the background, complete when all ranks have written, and loaded when a job begins.

The training waits only while its state is copied to host memory. A thread of each rank then writes the rank's files,
and hears of the others'; rank 0's makes the checkpoint of them. What is saved is `Content`: a user's script has one
(`things`), and so has the product's own training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, TypeVar

import torch

from .files import described, disk_refusal, remove, sync
from .generators import Own, generators, restore
from .peers import Peers
from .sealed import Folder, damage, manifest, step_of
from .state import unreadable
from .telling import ChainError, say, tell

FULL = ("No space left", "quota exceeded")  # of errno's texts
# How far a rank is with a save. That of the whole save is the largest of all ranks': it has failed once all know of it.
DONE, FAILED, WRITING = 0.0, 1.0, 2.0
Files = dict[str, Any]
T = TypeVar("T")


class SaveError(Exception):
    """Why a save has failed, and on which rank; the same on all of them. Its cause is known to that rank.

    `again`: the one before has failed, too.
    """

    def __init__(self, reason: str, rank: int) -> None:
        super().__init__(f"{reason} (rank {rank})")
        self.rank, self.again = rank, False


@dataclass
class Parts:
    """What one rank saves, copied: what is its own, further files by their names, and what writes itself meanwhile.

    `facts` are what the manifest says beside its files: whose it is, and its shape.
    """

    own: Mapping[str, Any]
    facts: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)
    writing: Future[Any] | None = None


class Content(Protocol):
    """What a checkpoint holds beside each rank's random generators. All methods are called on every rank alike."""

    def save(self, folder: Path, step: int) -> Parts:
        """The state after `step` steps, copied; it may have begun to write into the folder. Collective.

        Raises, on all ranks, where the state cannot be saved, or not there.
        """

    def load(self, place: Path, own: Mapping[str, Any]) -> None:
        """Load a sound checkpoint. `own` is what this rank has saved; empty where that is left. Collective."""

    def prove(self, place: Path) -> None:
        """Read the first checkpoint of a training as the next job will, which would be too late. Collective; raises."""


class Saver:
    """A chain's checkpoints, as its ranks write and load them together.

    `attempt` is a name that all processes of this job share, and no other job's; made here where none is given, and
    then a collective call. `saved` is the newest step that is
    complete, `begun` the newest whose save has begun; `under_way` tells whether one is being copied, written or read.
    `longest_save_seconds` is the longest from a save's beginning until it was complete, in this job or an earlier one;
    0 where none has ended.
    """

    def __init__(self, folder: Folder, content: Content, ranks: Peers, attempt: str = "") -> None:
        self.folder, self.content, self.ranks = folder, content, ranks
        self.saved, self.begun, self.longest_save_seconds = 0, 0, 0.0
        self._attempt, self.under_way = attempt or ranks.of_first(lambda: token_hex(4)), False
        self.writing: Future[float] | None = None  # the seconds that the save of `begun` took, once it is complete
        self._proven = self._failed = False  # whether a checkpoint of this training was read; the last save has failed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.further: list[Own] = []  # the loader's, of the user's making
        self._further_states: list[Any] = []  # as they were loaded, until the loader is known

    def use(self, further: list[Own]) -> None:
        """Save these generators, too, and set them to what was loaded."""
        for each, state in zip(further, self._further_states, strict=False):
            each.set_state(state)
        self.further, self._further_states = further, []

    # Saving

    def partial(self, step: int) -> Path:
        """Where this job writes a checkpoint, until it is whole."""
        return self.folder.partial(self._attempt, step)

    @property
    def progress(self) -> float:
        """How far this rank is, for the ranks to agree on; DONE without a save."""
        if self.writing is None:
            return DONE
        if not self.writing.done():
            return WRITING
        return FAILED if self.writing.exception() else DONE

    def save(self, step: int) -> None:
        """Save the state after `step` steps, and wait until it is complete. Collective."""
        self.begin(step)
        self.finish()

    def save_last(self, step: int) -> None:
        """The same before a job ends, unless that is saved; where it fails, it is tried once more. Collective."""
        self.finish()
        while self.saved < step:
            self.begin(step)
            self.finish()

    def begin(self, step: int) -> None:
        """Begin to save the state after `step` steps; returns once it is copied. Collective; one save at a time."""
        assert self.writing is None, "a save is still being written"
        began, place, self.under_way = time.monotonic(), self.partial(step), True
        with suppress(OSError):  # who writes there meets the same, and tells it
            place.mkdir(0o755, exist_ok=True)
        own = {"step": step, "generators": generators(self.further)}
        parts = self.content.save(place, step)
        parts.own = own | {**parts.own}
        self.begun = step
        self.writing = self._thread.submit(self._write, place, step, parts, began)

    def agree(self, progress: float) -> bool:
        """Told the largest `progress` of all ranks: end the save once it is complete, or has failed on all of them.

        Whether another save can begin. Collective. Raises what `failed` and the content's `prove` do.
        """
        if self.writing and progress != WRITING:
            writing, self.writing = self.writing, None
            self._conclude(writing, failed=progress == FAILED)
            self.under_way = False
        return self.writing is None

    def finish(self) -> None:
        """Wait until the save that was begun, if any, is complete. Collective; raises as `agree` does."""
        progress = WRITING
        while not self.agree(progress):
            # Often enough that the ranks who wait hear of each other before the group's timeout.
            wait([self.writing] if self.writing else [], timeout=1.0)
            (progress,) = self.ranks.largest([self.progress])

    def _conclude(self, writing: Future[float], *, failed: bool) -> None:
        step = self.begun
        try:
            seconds = writing.result()
            if failed:  # the ranks' threads have lost each other
                raise SaveError("no rank tells why", 0)
        except SaveError as failure:
            if self.ranks.rank == 0:
                with suppress(OSError):  # room for what others write there
                    remove(self.partial(step))
            failure.again, self._failed = self._failed, True
            self.failed(step, failure)
        else:
            self.longest_save_seconds = max(self.longest_save_seconds, seconds)
            self.saved, self._failed = step, False
            if not self._proven:
                self.content.prove(self.folder.place(step))
                self._proven = True
            tell("saved", step)

    def failed(self, step: int, failure: SaveError) -> None:
        """Say that a save has failed. Raises ChainError where the one before failed, too. Collective."""
        line, aloud = f"{self.folder.path}: step {step} could not be saved: {failure}", self.ranks.rank == failure.rank
        if failure.again:
            remedy = "make room there" if any(words in str(failure) for words in FULL) else "see to that disk"
            raise ChainError(f"{line}; {remedy}, and start the same job again", aloud=aloud)
        if aloud:
            say(f"warning: {line}; the next save tries again")

    # In the background

    def _write(self, place: Path, step: int, parts: Parts, began: float) -> float:
        """Write this rank's part, and make a checkpoint once all have; the seconds it took. Collective."""
        by_rank = self._on_all(partial(self._write_part, place, parts))
        files = {name: each for part in by_rank for name, each in part.items()}
        self._on_all(lambda: self._complete(place, step, files, parts.facts, began) if self.ranks.rank == 0 else None)
        return time.monotonic() - began

    def _write_part(self, place: Path, parts: Parts) -> Files:
        """Write this rank's files and make them durable; what the manifest says of them."""
        contents = {own_file(self.ranks.rank): parts.own, **parts.files}
        try:
            place.mkdir(0o755, parents=True, exist_ok=True)
            for name, content in contents.items():
                with (place / name).open("wb") as stream:
                    torch.save(content, stream)
        finally:
            if parts.writing:  # in any case: it uses the group in which the ranks then meet
                parts.writing.result()
        written = [*(place / name for name in contents), *place.rglob(f"__{self.ranks.rank}_*.distcp")]
        for path in written:
            sync(path)  # most of the time that a save takes
        return {str(path.relative_to(place)): described(path) for path in written}

    def _complete(self, place: Path, step: int, files: Files, facts: Mapping[str, Any], began: float) -> None:
        """On rank 0: make a checkpoint of what all have written."""
        for path in place.rglob("*"):  # what is no rank's, such as torch's metadata
            if path.is_file() and str(path.relative_to(place)) not in files:
                files[str(path.relative_to(place))] = described(path)
        seconds = round(max(self.longest_save_seconds, time.monotonic() - began), 3)
        facts = {**facts, "world_size": self.ranks.world_size, "save_seconds": seconds}
        self.folder.complete(place, step, files, facts)

    def _on_all(self, act: Callable[[], T]) -> list[T]:
        """What each rank gets by doing something. Raises SaveError on all of them where one cannot. Collective."""
        result: list[T] = []
        cause = None
        try:
            result.append(act())
        except BaseException as error:  # torch's CheckpointException is no Exception
            cause = self._cause_of(error)
        every = self.ranks.gather((result, _in_one_line(cause) if cause else ""), saving=True)
        for rank, (_, reason) in enumerate(every):
            if reason:
                raise SaveError(reason, rank) from (cause if rank == self.ranks.rank else None)
        return [one for results, _ in every for one in results]

    def _cause_of(self, error: BaseException) -> BaseException | None:
        """Why this rank could not write; None where another one knows. torch names no full disk: a probe does."""
        failures = getattr(error, "failures", None)  # of torch's CheckpointException: by rank, the same on all ranks
        if isinstance(failures, dict) and failures:
            if self.ranks.rank not in failures:
                return None
            error = failures[self.ranks.rank][0]
        return error if isinstance(error, OSError) else (disk_refusal(self.folder.path) or error)

    # Loading

    def damage(self, place: Path, damage_of: Callable[[Path, int, int], str | None] = damage) -> str | None:
        """What any rank finds wrong with a checkpoint: each reads its share of the files. Collective.

        `damage_of` gets the place, the number of this share, and how many there are.
        """
        reading = self._thread.submit(damage_of, place, self.ranks.rank, self.ranks.world_size)
        # Reading a large checkpoint for its checksums may take longer than the ranks wait for each other.
        while self.ranks.largest([float(not reading.done())])[0]:
            wait([reading], timeout=1.0)
        return next((problem for problem in self.ranks.gather(reading.result()) if problem), None)

    def load(self, place: Path, *, of_this_run: bool = True) -> None:
        """Load a sound checkpoint. Collective. Raises ChainError where this rank's own file cannot be read.

        Of another run's, the ranks' own files are left: they need not draw what this one's ranks should.
        """
        own = self.ranks.alike(lambda: read(place / own_file(self.ranks.rank))) if of_this_run else {}
        self.content.load(place, own)
        self.saved = self.begun = int(step_of(place))
        self._proven = True
        if of_this_run:
            restore(own["generators"])
            self._further_states = own["generators"]["further"]
            with suppress(OSError, ValueError):  # a hint
                seconds = manifest(place).get("save_seconds")
                if isinstance(seconds, float) and 0 <= seconds < math.inf:
                    self.longest_save_seconds = seconds


def _in_one_line(cause: BaseException) -> str:
    """Why a rank could not write: of a disk, as it is known to all."""
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return f"{type(cause).__name__}: {cause}".splitlines()[0]


def own_file(rank: int) -> str:
    """The file in which a rank has its generators, and what else is its own."""
    return f"rank-{rank}.pt"


def read(path: Path, *, mapped: bool = False) -> Any:
    """What is in a checkpoint's file; `mapped`: left on the disk. Raises ChainError where torch cannot read it."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        raise ChainError(f"{path} cannot be read by weights_only: {unreadable(error)}") from None
