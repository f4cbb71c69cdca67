"""The spots of a run: a few short stretches of its steps, and its states before and after each of them.

They lie in `spots/` beside the rolling checkpoints, which never touch them: `spots.json` with what was drawn and what
was seen of these steps, and `{run}/step-{n}/`, states that are sealed as checkpoints are. Needs no torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from relay.base import typed
from relay.base.files import remove, write_json
from relay.chain.sealed import complete, remove_leftovers, steps
from relay.chain.writers import make_own
from relay.spec.recipe import SpotChecks

Kind = Literal["random step", "hop", "end"]
FOLDER, FILE = "spots", "spots.json"


def states_folder(work: Path) -> Path:
    """Where the states of a run lie. `work` is the folder of its rolling checkpoints, and has its name."""
    return work / FOLDER / work.name


@dataclass(frozen=True)
class Spot:
    """A stretch of steps: those after step `first`, up to step `last`."""

    kind: Kind
    first: int
    last: int


@dataclass
class Seen:
    """What the ranks saw of one step. `parts`: the sizes of the batches that reached each rank's loss, in order.

    `bytes_sent` are each rank's over TCP; None where the kernel does not tell.
    """

    parts: list[list[int]]
    bytes_sent: list[int] | None


@dataclass
class Spots:
    """What is known of a run's spots.

    `replicas` has for each rank the index of its replica, and whether it reports the replica's loss; `layers` the names
    of the network's layers that it computes. `early_bytes` are those that each rank sent in one of the chain's first
    steps. `missed` says which spots could not be kept, and why. `seconds` is what all saves of states took.
    """

    spots: list[Spot]
    seen: dict[int, Seen] = field(default_factory=dict)
    replicas: list[tuple[int, bool]] = field(default_factory=list)
    layers: list[list[str]] = field(default_factory=list)
    early_bytes: list[int] | None = None
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def states(self) -> set[int]:
        """The steps after which the run's state is needed."""
        return {step for spot in self.spots for step in (spot.first, spot.last)}

    @property
    def steps(self) -> set[int]:
        """The steps within the spots."""
        return {step for spot in self.spots for step in range(spot.first + 1, spot.last + 1)}

    def write(self, work: Path) -> None:
        """Write them beside the run's rolling checkpoints."""
        write_json(work / FOLDER / FILE, asdict(self))

    @classmethod
    def read(cls, work: Path) -> Spots | None:
        """What was written; None where there is nothing, or something damaged: it is then drawn again."""
        return typed.read(cls, work / FOLDER / FILE)


def draw(checks: SpotChecks, first: int, last: int, total: int) -> Spots:
    """Draw a chain's spots, when its first job trains steps `first` to `last` of `total`.

    With the system's randomness: the training's own generators stay as they are.
    """
    spots = Spots([])
    for _ in range(checks.random_steps):
        _add_random(spots, checks, first, total)
    # The jobs of a chain are equally long. Where it goes on from another run's step, only the first one's end is known.
    hops = list(range(last, total, last)) if first == 0 else [last] * (last < total)
    hops = [hop for hop in hops if hop - 1 >= max(1, first)]
    for hop in sorted(_system.sample(hops, min(checks.hops, len(hops)))):
        spots.spots.append(Spot("hop", hop - 1, min(hop - 1 + checks.steps, total)))
    if checks.end:
        _add(spots, "end", max(total - checks.steps, first, 1), total)
    return spots


_system = random.SystemRandom()


def _add_random(spots: Spots, checks: SpotChecks, least: int, total: int) -> None:
    """Draw a random spot after step `least`. A state is never saved before the first step."""
    least = max(1, least)
    first = _system.randint(least, max(least, total - checks.steps))
    _add(spots, "random step", first, min(first + checks.steps, total))


def _add(spots: Spots, kind: Kind, first: int, last: int) -> None:
    if first < last:
        spots.spots.append(Spot(kind, first, last))
    else:
        spots.missed.append(f"{kind}: no two states after step 1 are left to compare")


def go_on(spots: Spots, checks: SpotChecks, work: Path, step: int, total: int) -> Spots:
    """The spots of a chain that goes on from `step`: where a state that is needed can no longer be saved, draw anew.

    The rank that calls it removes what killed saves have left.
    """
    folder = states_folder(work)
    make_own(folder)
    remove_leftovers(folder)
    there = set(complete(folder))
    kept = replace(spots, spots=[])
    for spot in spots.spots:
        passed = {state for state in (spot.first, spot.last) if state < step}
        if passed <= there:
            kept.spots.append(spot)
        elif spot.kind == "random step":
            _add_random(kept, checks, step, total)
        else:
            _add(kept, spot.kind, max(spot.first, step), spot.last)
    tidy(folder, kept.states)
    return kept


def tidy(folder: Path, needed: Iterable[int]) -> None:
    """Remove all states but those."""
    for step in set(steps(folder)).difference(needed):
        remove(folder / f"step-{step}")
