"""Checkpoints: written in the background, completed when all ranks have written, and loaded when a job begins.

The training waits only while its state is copied to host memory. A thread of each rank then writes the rank's files.
The main threads agree that all have written, and rank 0 makes the checkpoint of them.
"""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from . import writers
from .agreement import Background, Ranks, Saving
from .ending import ChainError, say
from .files import described, disk_refusal, remove, sync
from .generators import Own, generators, restore
from .loader import Place
from .report import reporter
from .sealed import Folder, damage, manifest, newest_sound, of_another
from .state import REPLICATED, State, unreadable

FULL = ("No space left", "quota exceeded")  # of errno's texts
Files = dict[str, Any]


class Checkpoints(Background[Files]):
    """A chain's checkpoints, as its ranks write and load them together.

    `script` is the name of the script's file. `saved` is the newest step that is complete. Where a rank could not
    write, it is said, and the next save tries again; where that fails, too, all ranks raise ChainError.
    """

    def __init__(self, folder: Folder, state: State, ranks: Ranks, script: str) -> None:
        super().__init__(ranks)
        self.folder, self.state, self.ranks, self.script = folder, state, ranks, script
        self.saved = 0
        self._once_failed = False  # whether the last save was
        self._proven = False  # whether a checkpoint of this training was read
        self.own: list[Own] = []  # the loader's, of the user's making
        self._own_states: list[Any] = []  # as they were loaded, until the loader is known
        self._attempt = ranks.of_first(lambda: secrets.token_hex(4))
        self._sharded = None
        if state.sharded:
            from .sharded import Sharded

            self._sharded = Sharded(state)

    def use(self, own: list[Own]) -> None:
        """Save these generators, too, and set them to what was loaded."""
        for each, state in zip(own, self._own_states, strict=False):
            each.set_state(state)
        self.own, self._own_states = own, []

    # Saving

    def begin(self, place: Place) -> None:
        """Begin to save the state after `place.step` steps; returns once it is copied. Collective; one at a time."""
        assert self._saving is None, "a save is still being written"
        began, partial = time.monotonic(), self.folder.partial(self._attempt, place.step)
        self.ranks.alike(lambda: partial.mkdir(parents=True, exist_ok=True))
        self.ranks.alike(self.state.check)
        self.state.divide()
        contents = {
            f"rank-{self.ranks.rank}.pt": {
                "place": place.state(),
                "generators": generators(self.own),
                **self.state.own(),
            }
        }
        if self.ranks.rank == 0:
            contents[REPLICATED] = self.state.replicated()
        shards = self._sharded.begin(partial) if self._sharded else None
        part = self._thread.submit(self._write, partial, contents, shards)
        self._saving = Saving(place.step, partial, part, began)

    def _write(self, partial: Path, contents: Mapping[str, Any], shards: Future[Any] | None) -> Files:
        """In the background: write this rank's files and make them durable; what the manifest says of them."""
        written = []
        for name, content in contents.items():
            with (partial / name).open("wb") as stream:
                torch.save(content, stream)
            written.append(partial / name)
        if shards:
            shards.result()
            written += partial.glob(f"*/__{self.ranks.rank}_*.distcp")
            written += partial.glob("*/.metadata") if self.ranks.rank == 0 else []
        for path in written:
            sync(path)
        return {str(path.relative_to(partial)): described(path) for path in written}

    def _written(self, saving: Saving[Files]) -> None:
        files = {name: each for part in self.ranks.gather(saving.part.result()) for name, each in part.items()}
        seconds = max(self.longest_save_seconds, time.monotonic() - saving.began)
        facts = {
            "script": self.script,
            "words": sys.argv[1:],
            "world_size": self.ranks.world_size,
            "save_seconds": round(seconds, 3),
            "things": self.state.shape(),
        }
        try:
            self.ranks.of_first(lambda: self.folder.complete(saving.partial, saving.step, files, facts))
        except ChainError as error:
            self._give_up(saving, str(error), aloud=error.aloud)
            return
        self.saved, self._once_failed = saving.step, False
        self.longest_save_seconds = seconds
        if not self._proven:  # the next job would be too late to find it
            place = self.folder.place(saving.step)
            self.ranks.alike(lambda: self._prove(place))
        if report := reporter():
            report.event("saved", saving.step)

    def _failed(self, saving: Saving[Files]) -> None:
        error = saving.part.exception() if saving.part.done() else None
        rank, reason = self._reason(_reason(error, self.ranks.rank, self.folder.path) if error else None)
        self._give_up(saving, f"{reason} (rank {rank})", aloud=self.ranks.rank == rank)

    def _give_up(self, saving: Saving[Files], reason: str, *, aloud: bool) -> None:
        """Say that a save failed. Raises ChainError where the one before failed, too."""
        self._saving = None
        if self.ranks.rank == 0:
            remove(saving.partial)  # room for what others write there
        line = f"{self.folder.path}: step {saving.step} could not be saved: {reason}"
        if self._once_failed:
            remedy = "make room there" if any(words in reason for words in FULL) else "see to that disk"
            raise ChainError(f"{line}; {remedy}, and start the same job again", aloud=aloud)
        self._once_failed = True
        if aloud:
            say(f"warning: {line}; the next save tries again")

    # Loading

    def load(self) -> Place:
        """Load the newest sound checkpoint, and return the place to go on from; step 0 where there is none. Collective.

        Says what is passed over. Raises ChainError where none is sound, and for one of another script or shape.
        """
        places = self.ranks.of_first(self.folder.places)
        place = newest_sound(places, self._damage, aloud=self.ranks.rank == 0)
        return self._loaded(place) if place else Place()

    def _damage(self, place: Path) -> str | None:
        """What any rank finds wrong with a checkpoint: each reads its share of the files. Collective."""
        problems = self.ranks.gather(damage(place, self.ranks.rank, self.ranks.world_size))
        return next((problem for problem in problems if problem), None)

    def _prove(self, place: Path) -> None:
        """Read a checkpoint that was just saved, as the next job will. Raises ChainError where that cannot be.

        Rank 0 alone reads what is alike for all: each rank of a node would need host memory for it.
        """
        if problem := damage(place, self.ranks.rank, self.ranks.world_size):
            raise ChainError(f"what was saved cannot be read back: {problem}")
        names = [f"rank-{self.ranks.rank}.pt", *([REPLICATED] if self.ranks.rank == 0 else [])]
        self._read(place, manifest(place), names, mapped=True)

    def _read(self, place: Path, facts: Mapping[str, Any], names: Sequence[str], *, mapped: bool = False) -> list[Any]:
        """What is in a checkpoint's files of these names; `mapped`: left on the disk. Raises ChainError.

        It raises that where the checkpoint is another one's, and where torch cannot read it.
        """
        self._refuse_another(place, facts)
        path = place
        try:
            if self._sharded:
                self._sharded.read(place)
            contents = [
                torch.load(path := place / name, map_location="cpu", weights_only=True, mmap=mapped) for name in names
            ]
        except Exception as error:
            raise ChainError(f"{path} cannot be read by weights_only: {unreadable(error)}") from None
        self._proven = True
        return contents

    def _loaded(self, place: Path) -> Place:
        facts = manifest(place)
        names = (REPLICATED, f"rank-{self.ranks.rank}.pt")
        every, own = self.ranks.alike(lambda: self._read(place, facts, names))
        if self._sharded:
            self._sharded.load(place)
        self.state.load(every, own, facts["things"])
        restore(own["generators"])
        self.longest_save_seconds = facts.get("save_seconds", 0.0)
        if self.ranks.rank == 0:
            writers.tell(place.parent, place)
            say(f"goes on from step {own['place']['step']} ({place})")
            before, now = shlex.join(facts.get("words", sys.argv[1:])), shlex.join(sys.argv[1:])
            if before != now:
                say(f"the command's words were '{before}', and are '{now}' now")
            for name in self.state.shape().keys() - facts["things"].keys():
                say(f"{place} has no {name}: it starts anew")
        self._own_states = own["generators"]["further"]
        self.saved = own["place"]["step"]
        return Place(**own["place"])

    def _refuse_another(self, place: Path, facts: Mapping[str, Any]) -> None:
        """Raises ChainError where a checkpoint is of another script, number of processes, or other parameters."""
        remedy = f"give another folder, or remove {self.folder.path} to start at step 0"
        if wrong := of_another(facts, self.script, self.ranks.world_size):
            raise ChainError(f"{place} {wrong}; {remedy}")
        if wrong := _difference(facts["things"], self.state.shape()):
            raise ChainError(f"{place} does not fit this script: {wrong}; {remedy}")


def _reason(error: BaseException, rank: int, folder: Path) -> str:
    """Why a part could not be written. torch's own words on a full disk do not name it: a probe does."""
    failures = getattr(error, "failures", None)  # of torch's CheckpointException: by rank
    if isinstance(failures, dict) and rank in failures:
        error = failures[rank][0]
    cause = error if isinstance(error, OSError) else (disk_refusal(folder) or error)
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return f"{type(cause).__name__}: {cause}".splitlines()[0]


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """How the shape of a checkpoint differs from the script's, in words; None where it does not.

    What is here and not there is no difference: it may have been forgotten until now.
    """
    for name, saved in there.items():
        if name not in here:
            return f"it has {name} ({saved['kind']}), which is not given"
        given = here[name]
        if saved["kind"] != given["kind"]:
            return f"{name} is {saved['kind']} there, and {given['kind']} here"
        if wrong := _grouped_otherwise(saved.get("groups", []), given.get("groups", [])):
            return f"{name}: {wrong}"
        tensors = saved["tensors"]
        if names := [key for group in saved.get("groups", ()) for key in group]:  # older manifests had their places
            tensors = dict(zip(names, tensors.values(), strict=True))
        for key in {**tensors, **given["tensors"]}:
            before, now = tensors.get(key), given["tensors"].get(key)
            if before != now:
                return f"{name}: {key} has {_shape(before)} there, and {_shape(now)} here"
    return None


def _grouped_otherwise(there: list[list[str]], here: list[list[str]]) -> str | None:
    """Which parameter is in another group than it was, or in none; the order within a group does not matter."""
    before, now = ({name: place for place, names in enumerate(each) for name in names} for each in (there, here))
    wrong = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if missing := [key for key in wrong if key not in now]:
        return (
            f"{', '.join(missing)}: trained there, and in no group here; if the script adds them on the way, it has to "
            "add them before resume, where reached() tells that the training has come so far"
        )
    for key in wrong:
        return (
            f"{key} is in {f'group {before[key]}' if key in before else 'no group'} there, and in group {now[key]} here"
        )
    return None


def _shape(shape: list[int] | None) -> str:
    return "no place" if shape is None else f"shape {tuple(shape)}"
