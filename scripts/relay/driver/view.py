"""What a terminal shows while a driver works: the runs under way, other jobs, and how much is done."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console, RenderableType
from rich.text import Text

from relay.base.clock import clock
from relay.status import page
from relay.status.runs import Standing, State

STYLES: dict[State, str] = {"running": "green", "queued": "yellow", "begun": "cyan", "failed": "bold red"}

# What a terminal of at least so many columns shows of a run, beside its name: that needs room as well.
COLUMNS = ((72, page.LIVE), (44, ("state", "step")), (0, ("state",)))
MOST_REASONS = 3


class Watched(Protocol):
    """How the runs stand; `news` is a line on Slurm's queue."""

    news: str

    def look(self) -> Sequence[Standing]: ...


@dataclass(frozen=True)
class Job:
    """A job of Snakemake's that was started or submitted: in words, at which time, and whether it is a local rule's."""

    words: str
    since: float
    local: bool = False
    run: str | None = None  # that it trains


@dataclass
class View:
    """Makes the lines. `proofs` are the ids of what proves the runs, by the folder of their verdicts."""

    watch: Watched
    proofs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    results: Path = Path("results")

    def lines(self, jobs: Sequence[Job], done: tuple[int, int] | None, width: int, height: int) -> list[str]:
        """At most `height` lines of at most `width`, with colours unless NO_COLOR is set.

        `jobs` are under way. `done`: how many of how many jobs are done, None where that is not known yet.
        """
        standings = list(self.watch.look())
        shown = [each for each in standings if each.state in STYLES]
        known = {each.run.id for each in shown}
        below = [f"since {clock(job.since)}: {job.words}" for job in jobs if job.run not in known]
        below += [*page.whys(each for each in standings if each.state != "queued"), *_waits(standings)]
        below += [*page.verdicts(self.proofs, self.results), page.whole(standings)]
        below += [self.watch.news] if self.watch.news else []
        below += [f"jobs: {done[0]} of {done[1]} done, {len(jobs)} under way"] if done else []
        most = max(1, height - 1)  # the page's last lines tell most, so that they are kept
        foot = _drawn([Text(line, no_wrap=True, overflow="ellipsis") for line in below], width)[-most:]
        room = height - len(foot)
        shown = sorted(shown, key=lambda each: page.ORDER.index(each.state))
        columns = next(names for least, names in COLUMNS if width >= least)
        while shown and len(rows := _drawn([page.table(shown, columns, STYLES)], width)) > room:
            left_out = max(1, len(rows) - room)
            shown = shown[: max(0, len(shown) - left_out)]
        return [*(rows if shown else []), *foot]


def _waits(standings: Sequence[Standing]) -> Iterator[str]:
    """Why runs wait in the queue: a line for each reason, the most frequent ones first."""
    by_reason: dict[str, list[str]] = {}
    for each in standings:
        if each.state == "queued" and each.why:
            by_reason.setdefault(each.why, []).append(each.words)
    most = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    for reason, names in most[:MOST_REASONS]:
        yield f"queued: {names[0] if len(names) == 1 else f'{len(names)} runs'}: {reason}"


def _drawn(parts: Sequence[RenderableType], width: int) -> list[str]:
    """The parts below each other, in lines with the codes of their colours."""
    text = io.StringIO()
    console = Console(
        file=text, width=width, force_terminal=True, color_system="standard", no_color=bool(os.environ.get("NO_COLOR"))
    )
    for part in parts:
        console.print(part)
    return [line.rstrip() for line in text.getvalue().splitlines()]
