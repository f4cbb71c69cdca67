"""Which of a run's checkpoints are sound: whole, as `relay.chain` tells it, and of this run. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json_or, remove
from relay.chain import sealed, writers

MANIFEST = "complete.json"
REACHED = "reached.json"  # the newest step that a script has saved, as it tells
LEVELS = 3  # results/checkpoints/RUN: the run's own folder, and those above it that are the project's


def refuse_others(work: Path) -> None:
    """Raises UserError where another user could put something into a run's folder."""
    if problem := writers.unsafe_above(work, LEVELS):
        raise UserError(problem)


def complete(directory: Path) -> list[int]:
    """Steps of which a checkpoint `step-{n}/` is there, newest first."""
    return sealed.complete(directory, MANIFEST)


def saved_step(work: Path) -> int:
    """The step of the newest checkpoint, a script's own included; 0 where there is none."""
    step = read_json_or(work / REACHED, {}).get("step")
    return max([*complete(work), step if isinstance(step, int) else 0])


def remove_leftovers(directory: Path) -> None:
    """Remove what killed saves have left."""
    for leftover in directory.glob("partial-*"):
        with suppress(OSError):  # what an orphan still writes goes with the next attempt
            remove(leftover)


def sound(directory: Path, first: int, last: int, *, generation: str | None = None) -> Iterator[int]:
    """Steps within [first, last] of which a sound checkpoint is there, newest first; a warning for a damaged one.

    `generation` is the start of the run that they have to be of, where that is known. Raises UserError where another
    user could have put one there.
    """
    steps = complete(directory)
    if steps:
        refuse_others(directory)
    places = [directory / f"step-{step}" for step in steps if first <= step <= last]
    warn = partial(print, "warning:", flush=True)
    for place in sealed.sound(places, partial(damage, generation=generation), warn):
        with suppress(OSError):
            if line := writers.warning((place, *place.rglob("*")), directory, owners=False):
                print(line, flush=True)
        yield int(sealed.step_of(place))


def damage(place: Path, *, of_run: str | None = None, generation: str | None = None) -> str | None:
    """What is wrong with a checkpoint's directory, in one line; None where it is sound.

    `of_run` is the run that it has to be of, where that is not the folder in which it lies; `generation` the start of
    that run, where it is known.
    """
    try:
        facts = manifest(place)
    except (OSError, ValueError, RecursionError) as error:
        return sealed.damage(place, name=MANIFEST) or f"{place / MANIFEST} cannot be read ({error})"
    if facts.get("run") not in (None, of_run or place.parent.name):
        return f"{place} holds a checkpoint of run {facts['run']}: it was copied there"
    chain = facts.get("chain")
    start = chain.get("generation") if isinstance(chain, dict) else None  # none where it was adopted
    if None not in (start, generation) and start != generation:
        return f"{place} holds a checkpoint of another start of the run: it was copied there"
    return sealed.damage(place, name=MANIFEST)


def manifest(place: Path) -> dict[str, Any]:
    """What a checkpoint's manifest says. Raises OSError or ValueError where it cannot be read."""
    return sealed.manifest(place, MANIFEST)
