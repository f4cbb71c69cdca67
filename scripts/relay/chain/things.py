"""What a user's script saves: its things, and its place in the data; and what it has forgotten to give."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from . import writers
from .generators import Own
from .loader import Place
from .peers import Peers
from .saving import Parts, Saver, own_file, read
from .sealed import Folder, damage, manifest, newest_sound, of_another
from .state import REPLICATED, State, parameters
from .telling import ChainError, say

_KINDS = {LRScheduler: "scheduler", Optimizer: "optimizer", torch.amp.GradScaler: "scaler", AveragedModel: "ema"}


class Things:
    """The content of a script's checkpoints. `script` is the name of its file; `place` is where it is in its data."""

    def __init__(self, state: State, ranks: Peers, folder: Folder, script: str) -> None:
        self.state, self.ranks, self.folder, self.script = state, ranks, folder, script
        self.place = Place()
        self._sharded = None
        if state.sharded:
            from .sharded import Sharded

            self._sharded = Sharded(state)

    def go_on(self, saver: Saver) -> None:
        """Load the newest sound checkpoint, where there is one. Collective.

        Says what is passed over. Raises ChainError where none is sound, and for one of another script or shape.
        """
        places = self.ranks.of_first(self.folder.places)
        place = newest_sound(places, saver.damage, aloud=self.ranks.rank == 0)
        if place:
            self.ranks.alike(lambda: self._refuse_another(place))
            saver.load(place)

    # Saving

    def save(self, folder: Path, step: int) -> Parts:
        """The state after `step` steps, copied. Collective. Raises ChainError for what could not be read back."""
        states = self.ranks.alike(self.state.asked)
        replicas = self.state.replicas(states)
        parts = self.ranks.alike(lambda: self._copied(states, replicas))
        parts.writing = self._sharded.begin(folder) if self._sharded else None
        return parts

    def _copied(self, states: Mapping[str, Any], replicas: Collection[str]) -> Parts:
        files = {REPLICATED: self.state.replicated(states, replicas)} if self.ranks.rank == 0 else {}
        # The script, the words of its command line, and the shape of what it has given.
        facts = {"script": self.script, "words": sys.argv[1:], "things": self.state.shape}
        return Parts({"place": asdict(self.place), **self.state.own(states, replicas)}, facts, files)

    def prove(self, place: Path) -> None:
        """Prove that a checkpoint can be read. Collective. Raises ChainError."""
        self.ranks.alike(lambda: self._prove(place))

    def _prove(self, place: Path) -> None:
        """Read a checkpoint that was just saved, as the next job will. Raises ChainError where that cannot be.

        Rank 0 alone reads what is alike for all: each rank of a node would need host memory for it.
        """
        if problem := damage(place, self.ranks.rank, self.ranks.world_size):
            raise ChainError(f"what was saved cannot be read back: {problem}")
        self._refuse_another(place)
        for name in (own_file(self.ranks.rank), *([REPLICATED] if self.ranks.rank == 0 else [])):
            read(place / name, mapped=True)

    # Loading

    def load(self, place: Path, own: Mapping[str, Any]) -> None:
        """Load all of a sound checkpoint, and say from where the script goes on. Collective."""
        things = manifest(place)["things"]
        replicated = self.ranks.alike(lambda: read(place / REPLICATED))
        if self._sharded:
            self._sharded.load(place)
        self.ranks.alike(lambda: self.state.load(replicated, own, things))
        self.place = Place(**own["place"])
        if self.ranks.rank == 0:
            self._tell(place)

    def _tell(self, place: Path) -> None:
        facts = manifest(place)
        writers.tell(place.parent, place)
        say(f"goes on from step {self.place.step} ({place})")
        before, now = shlex.join(facts.get("words", sys.argv[1:])), shlex.join(sys.argv[1:])
        if before != now:
            say(f"the command's words were '{before}', and are '{now}' now")
        for name in self.state.shape.keys() - facts["things"].keys():
            say(f"{place} has no {name}: it starts anew")

    def _refuse_another(self, place: Path) -> None:
        """Raises ChainError where a checkpoint is of another script, number of processes, or other parameters.

        So it does where its shards cannot be read.
        """
        facts, remedy = manifest(place), f"give another folder, or remove {self.folder.path} to start at step 0"
        if wrong := of_another(facts, self.script, self.ranks.world_size):
            raise ChainError(f"{place} {wrong}; {remedy}")
        if wrong := difference(facts["things"], self.state.shape):
            raise ChainError(f"{place} does not fit this script: {wrong}; {remedy}")
        if self._sharded:
            self._sharded.check(place)


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
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
        for key in {**saved["tensors"], **given["tensors"]}:
            before, now = saved["tensors"].get(key), given["tensors"].get(key)
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
    if not wrong:
        return None
    place = f"group {before[wrong[0]]}" if wrong[0] in before else "no group"
    return f"{wrong[0]} is in {place} there, and in group {now[wrong[0]]} here"


def _shape(shape: list[int] | None) -> str:
    return "no place" if shape is None else f"shape {tuple(shape)}"


def forgotten(things: Mapping[str, Any], state: State, of_loader: list[Own]) -> Iterator[str]:
    """Each thing of torch's that keeps a state and was not handed over, in one line. The loader's generators were."""
    kept = {id(value) for each in state.optimizers.values() for value in _values(each.state_dict()["state"])}
    given = {
        id(part)
        for thing in things.values()
        for part in _parts(thing)
        if part is thing or not isinstance(part, Optimizer) or {id(value) for value in _values(part.state)} <= kept
    }
    given |= {id(each.generator) for each in of_loader}
    kinds = _KINDS | ({sys.modules["numpy"].random.Generator: "rng"} if "numpy" in sys.modules else {})
    for each in gc.get_objects():
        # Its type, not isinstance: asking a stranger's proxy for its class may import what it stands for.
        for kind, name in kinds.items():
            if issubclass(type(each), kind) and id(each) not in given:
                yield f"a {type(each).__name__} was made and is not saved; give it: resume(…, {name}={name})"
    held = {id(each) for module in state.modules.values() for each in module.parameters()}
    for name, optimizer in state.optimizers.items():
        if missing := sum(id(each) not in held for each in parameters(optimizer)):
            yield f"{name} trains {missing} parameters that are not saved; give their module: resume(…, module=module)"


def _values(state: Mapping[Any, Any]) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer's state."""
    return (value for its in state.values() for value in its.values() if isinstance(value, torch.Tensor))


def _parts(thing: Any) -> Iterator[Any]:
    """A thing, and what it consists of, such as the schedulers of a SequentialLR."""
    yield thing
    for value in list(getattr(thing, "__dict__", {}).values()):
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, tuple(_KINDS)):
                yield from _parts(each) if isinstance(each, LRScheduler) else [each]
