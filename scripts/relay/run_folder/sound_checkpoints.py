"""Which of a run's checkpoints are sound: whole, as `relay.chain` tells it, and of this run. Needs no torch."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json_or
from relay.chain import sealed, writers
from relay.chain.sealed import complete

REACHED = "reached.json"  # the newest step that a script has saved, as it tells
LEVELS = 3  # results/checkpoints/RUN: the run's own folder, and those above it that are the project's


def refuse_others(work: Path) -> None:
    """Raises UserError where another user could put something into a run's folder."""
    if problem := writers.unsafe_above(work, LEVELS):
        raise UserError(problem)


def saved_step(work: Path) -> int:
    """The step of the newest checkpoint, a script's own included; 0 where there is none."""
    step = read_json_or(work / REACHED, {}).get("step")
    return max([*complete(work), step if isinstance(step, int) else 0])


def sound(directory: Path, first: int, last: int, generation: str | None = None) -> Iterator[int]:
    """Steps within [first, last] of which a sound checkpoint is there, newest first; a warning for a damaged one.

    `generation` is as for `damage`. Raises UserError where another user could have put one there.
    """
    for place in sealed.sound(within(directory, first, last), partial(damage, generation=generation), warn):
        tell_who_may_write(place)
        yield int(sealed.step_of(place))


def within(directory: Path, first: int, last: int) -> list[Path]:
    """Where checkpoints of steps within [first, last] lie, newest first. Raises UserError as `refuse_others` does."""
    if steps := complete(directory):
        refuse_others(directory)
    return [directory / f"step-{step}" for step in steps if first <= step <= last]


def warn(line: str) -> None:
    """Tell of a checkpoint that is passed over."""
    print("warning:", line, flush=True)


def tell_who_may_write(place: Path) -> None:
    """Warn where members of a group could have changed a checkpoint."""
    with suppress(OSError):
        if line := writers.warning((place, *place.rglob("*")), place.parent, owners=False):
            print(line, flush=True)


def damage(
    place: Path, share: int = 0, shares: int = 1, *, of_run: str | None = None, generation: str | None = None
) -> str | None:
    """What is wrong with a checkpoint's directory, in one line; None where it is sound.

    Each of `shares` processes reads the files of its own share. `of_run` is the run that it has to be of, where that is
    not the folder in which it lies; `generation` the start of that run, where it is known.
    """

    def wrong(facts: Mapping[str, Any]) -> str | None:
        if facts.get("run") not in (None, of_run or place.parent.name):
            return f"{place} holds a checkpoint of run {facts['run']}: it was copied there"
        chain = facts.get("chain")
        start = chain.get("generation") if isinstance(chain, dict) else None  # none where it was adopted
        if None not in (start, generation) and start != generation:
            return f"{place} holds a checkpoint of another start of the run: it was copied there"
        return None

    return sealed.damage(place, share, shares, wrong=wrong)
