"""The status as a page for the terminal: a line for each run, the proofs in a line, and the whole in another."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.table import Table
from rich.text import Text

from relay.base.clock import clock, duration
from relay.base.files import read_json_or
from relay.base.plain_text import plain_text
from relay.run_folder.snapshot import PLANNED
from relay.run_folder.verdicts import refuses
from relay.spec.run import Run
from relay.status.runs import Standing, State

COLUMNS = ("state", "trained", "jobs", "samples/s", "training left")
LIVE = ("state", "step", "jobs", "samples/s", "ends about")
ORDER: tuple[State, ...] = ("running", "queued", "begun", "trained", "failed", "to do", "done")
GATES, SPOT_CHECKS = "equivalence/gates", "equivalence/spot_checks"


def render(
    standings: Sequence[Standing], proofs: Mapping[str, Sequence[str]], results: Path, *, news: str, width: int
) -> str:
    """The page, in lines of at most `width`.

    `proofs` are the ids of what proves the runs, by the folder of their verdicts (`GATES`, `SPOT_CHECKS`). `news` is a
    line on Slurm's queue, '' for none.
    """
    lines = [*uses(standings), *whys(standings), *verdicts(proofs, results), whole(standings), *filter(None, [news])]
    return plain_text(table(standings), *(Text(line) for line in lines), width=width) + "\n"


def table(
    standings: Sequence[Standing], columns: Sequence[str] = COLUMNS, styles: Mapping[State, str] = MappingProxyType({})
) -> Table:
    """A row for each run, in the order of their states. `styles` are rich's, by state."""
    rows = Table(box=None, pad_edge=False)
    rows.add_column("run", overflow="fold")
    for name in columns:
        rows.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for each in sorted(standings, key=lambda each: ORDER.index(each.state)):
        cells = _cells(each)
        rows.add_row(Text(each.words), *(Text(cells[name]) for name in columns), style=styles.get(each.state))
    return rows


def _cells(each: Standing) -> dict[str, str]:
    """What is told of a run, by the names of columns. A dash stands for what is not known."""
    left = each.seconds_left
    ends = clock(time.time() + left) if left is not None and each.state == "running" else "–"
    return {
        "state": each.state,
        "trained": f"{each.step / each.steps:.0%}",
        "step": f"{each.step:,} of {each.steps:,}",
        "jobs": "–" if each.jobs is None else f"{each.jobs_done} of {each.jobs}",
        "samples/s": "–" if each.samples_per_second is None else f"{each.samples_per_second:,.0f}",
        "training left": "–" if left is None else duration(left),
        "ends about": ends,
    }


def uses(standings: Iterable[Standing]) -> Iterator[str]:
    """What running trainings use of their nodes, how fast they are and how long they take: a line for each node."""
    for each in standings:
        steps = (each.samples_per_second or 0.0) / each.run.batch.global_batch_size
        facts = [f"{steps:.3g} steps/s"] if steps else []
        facts += [f"{duration(each.seconds_left)} left"] if each.seconds_left is not None else []
        yield from (f"{each.words}: {', '.join((line, *facts))}" for line in each.uses)


def whys(standings: Iterable[Standing]) -> Iterator[str]:
    """Why runs failed or wait in the queue, or what is wrong while they run: a line for each."""
    for each in standings:
        if each.why:
            yield f"{each.state}: {each.words}: {each.why}"


def verdicts(proofs: Mapping[str, Sequence[str]], results: Path) -> Iterator[str]:
    """How many gates and spot checks have given their verdict, and which are against a setting."""
    for folder, ids in proofs.items():
        if not ids:
            continue
        read = (read_json_or(results / folder / id / "verdict.json", None) for id in ids)
        verdicts = [verdict if isinstance(verdict, dict) else None for verdict in read]  # damaged: not there
        against = sum(verdict is not None and not _passed(verdict) for verdict in verdicts)
        name = folder.rpartition("/")[2].replace("_", " ")
        line = f"{name}: {sum(verdict is not None for verdict in verdicts)} of {len(ids)} done"
        yield f"{line}, {against} against a setting (the report says why)" if against else line


def driver(who: str, runs: Iterable[Run], results: Path) -> Iterator[str]:
    """That a driver works meanwhile, and whether on these runs; nothing where there is none (`who` is '')."""
    planned = read_json_or(results / "code" / PLANNED, {})
    its = {name.removeprefix("run ") for name in planned if name.startswith("run ")}
    others = "" if its & {run.id for run in runs} else f", on an earlier version of this plan: {len(its)} other runs"
    if who:
        yield f"driver: {who} works on these results{others}"


def _passed(verdict: Mapping[str, object]) -> bool:
    runs = verdict.get("runs")
    if isinstance(runs, list):  # a spot check's
        return all(isinstance(run, dict) and run.get("status") != "failed" for run in runs)
    return not refuses(verdict)


def whole(standings: Sequence[Standing]) -> str:
    """How many runs are in each state, and how much of all training is done."""
    states = Counter(each.state for each in standings)
    counts = ", ".join(f"{states[state]} {state}" for state in ORDER if states[state])
    done = sum(each.step / each.steps for each in standings) / len(standings) if standings else 0.0
    return f"runs: {counts or 'none planned'}; {done:.0%} of the training is done"
