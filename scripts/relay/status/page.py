"""The status as a page for the terminal: a line for each run, the proofs in a line, and the whole in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from relay.base.clock import duration
from relay.base.files import read_json_or
from relay.base.plain_text import plain_text
from relay.status.runs import Standing, State

COLUMNS = ("state", "trained", "jobs", "samples/s", "training left")
ORDER: tuple[State, ...] = ("running", "queued", "begun", "failed", "to do", "done")
GATES, SPOT_CHECKS = "equivalence/gates", "equivalence/spot_checks"


def render(
    standings: Sequence[Standing], proofs: Mapping[str, Sequence[str]], results: Path, *, news: str, width: int
) -> str:
    """The page, in lines of at most `width`.

    `proofs` are the ids of what proves the runs, by the folder of their verdicts (`GATES`, `SPOT_CHECKS`). `news` is a
    line on Slurm's queue, '' for none.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for each in sorted(standings, key=lambda each: ORDER.index(each.state)):
        table.add_row(*map(Text, _row(each)))
    lines = [*_whys(standings), *_proofs(proofs, results), _whole(standings), *filter(None, [news])]
    return plain_text(table, *(Text(line) for line in lines), width=width) + "\n"


def _row(each: Standing) -> list[str]:
    jobs = "–" if each.jobs is None else f"{each.jobs_done} of {each.jobs}"
    speed = "–" if each.samples_per_second is None else f"{each.samples_per_second:,.0f}"
    left = "–" if each.seconds_left is None else duration(each.seconds_left)
    return [each.words, each.state, f"{each.step / each.steps:.0%}", jobs, speed, left]


def _whys(standings: Sequence[Standing]) -> Iterator[str]:
    """Why runs failed, or wait in the queue: a line for each."""
    for each in standings:
        if each.why:
            yield f"{each.state}: {each.words}: {each.why}"


def _proofs(proofs: Mapping[str, Sequence[str]], results: Path) -> Iterator[str]:
    """How many gates and spot checks have given their verdict, and which are against a setting."""
    for folder, ids in proofs.items():
        if not ids:
            continue
        verdicts = [read_json_or(results / folder / id / "verdict.json", None) for id in ids]
        against = sum(verdict is not None and not _passed(verdict) for verdict in verdicts)
        name = folder.rpartition("/")[2].replace("_", " ")
        told = f"{name}: {sum(verdict is not None for verdict in verdicts)} of {len(ids)} done"
        yield f"{told}, {against} against a setting (the report says why)" if against else told


def _passed(verdict: Mapping[str, object]) -> bool:
    runs = verdict.get("runs")
    if isinstance(runs, list):  # a spot check's
        return all(run["status"] != "failed" for run in runs)
    return bool(verdict.get("equivalent"))


def _whole(standings: Sequence[Standing]) -> str:
    """How many runs are in each state, and how much of all training is done."""
    states = Counter(each.state for each in standings)
    told = ", ".join(f"{states[state]} {state}" for state in ORDER if states[state])
    done = sum(each.step / each.steps for each in standings) / len(standings) if standings else 0.0
    return f"runs: {told or 'none planned'}; {done:.0%} of the training is done"
