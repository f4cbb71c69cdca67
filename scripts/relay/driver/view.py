"""What is told of jobs under way: on a terminal a view of the runs, and how much is done; elsewhere a line on each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.segment import SegmentLines
from rich.text import Text

from relay.base.clock import clock
from relay.base.errors import UserError
from relay.run_folder import attempts
from relay.run_folder.places import Places
from relay.spec.run import Run
from relay.status import page, runs
from relay.status.runs import Standing, State
from relay.status.watch import Watch

RESULTS = Path("results")
STYLES: dict[State, str] = {"running": "green", "queued": "yellow", "begun": "cyan", "failed": "bold red"}

# What a terminal of at least so many columns shows of a run, beside its name: that needs room as well.
COLUMNS = ((72, page.LIVE), (44, ("state", "step")), (0, ("state",)))
MOST_REASONS = 3


@dataclass(frozen=True)
class Job:
    """A job of Snakemake's that was started or submitted: in words, at which time, and whether it is a local rule's."""

    words: str
    since: float
    local: bool = False
    run: str | None = None  # that it trains
    end: int = 0  # the step at which that training ends


@dataclass
class View:
    """Makes the lines. `proofs` are the ids of what proves the runs, by the folder of their verdicts."""

    watch: Watch
    proofs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    results: Path = RESULTS

    def lines(self, console: Console, jobs: Sequence[Job], done: tuple[int, int] | None) -> SegmentLines:
        """At most as many lines as the terminal has. The last one is empty: there the cursor stands.

        `jobs` are under way. `done`: how many of how many jobs are done, None where that is not known yet.
        """
        standings = list(self.watch.look())
        shown = [each for each in standings if each.state in STYLES]
        shown_runs = {each.run.id for each in shown}
        below = [f"since {clock(job.since)}: {job.words}" for job in jobs if job.run not in shown_runs]
        below += [*page.whys(each for each in standings if each.state != "queued"), *_waits(standings)]
        below += [*page.verdicts(self.proofs, self.results), page.whole(standings)]
        below += [self.watch.news] if self.watch.news else []
        below += [f"jobs: {done[0]} of {done[1]} done, {len(jobs)} under way"] if done else []
        height = console.height - 2  # rich would scroll one of a whole screen away
        most = max(1, height - 1)  # the page's last lines tell most, so that they are kept
        texts = Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in below[-most:]))
        foot = console.render_lines(texts, pad=False)[-most:]
        room = height - len(foot)
        rows = []
        if shown and room > 1:  # a run, and the names of the columns
            shown = sorted(shown, key=lambda each: page.ORDER.index(each.state))[:room]
            columns = next(names for least, names in COLUMNS if console.width >= least)
            rows = console.render_lines(page.table(shown, columns, STYLES), pad=False)[:room]
        return SegmentLines([*rows, *foot, []], new_lines=True)


def described(job: Job, results: Path = RESULTS) -> str:
    """Epoch, speed and expected end of a training; '' while nothing is known, and of other jobs."""
    if not job.run:
        return ""
    try:
        run = Run.read(results / "runs" / job.run / "run.json")
        newest = attempts.pace(results / "checkpoints" / job.run)
    except (OSError, UserError):
        return ""
    if run.strategy.script:  # nobody knows its epochs, nor its end
        state = runs.silent(Places(results, job.run)) or (f"step {newest.step:,}" if newest else "")
        return f"{state}: {job.words}" if state else ""
    if newest is None:
        return ""
    epoch = f"epoch {newest.step / run.length.steps_per_epoch:.1f} of {run.length.epochs:g}"
    speed = f"{newest.steps_per_second * run.batch.global_batch_size:,.0f} samples/s"
    end = clock(newest.reached + newest.seconds_to(job.end))
    return f"{epoch}, {speed}, ends about {end}: {job.words}"


def _waits(standings: Sequence[Standing]) -> Iterator[str]:
    """Why runs wait in the queue: a line for each reason, the most frequent ones first."""
    by_reason: dict[str, list[str]] = {}
    for each in standings:
        if each.state == "queued" and each.why:
            by_reason.setdefault(each.why, []).append(each.words)
    most = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    for reason, names in most[:MOST_REASONS]:
        yield f"queued: {names[0] if len(names) == 1 else f'{len(names)} runs'}: {reason}"
