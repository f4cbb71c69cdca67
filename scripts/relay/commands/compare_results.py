"""Before and after a maintenance, or cluster A and cluster B. Each folder is a `results/` with its plan and runs.

Printed is a line for each setting: the ratio of its speeds (after / before) with its 95 % interval.
"""

from argparse import ArgumentParser
from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relay.base.errors import UserError
from relay.base.files import errors_in_one_line
from relay.comparison.between import Changed, between, made_otherwise
from relay.comparison.columns import CHANGES, MISSING, number, write_csv

STYLES = {"faster": "green", "slower": "red", "unclear": "yellow"}


def compare_results(parser: ArgumentParser, words: list[str]) -> int:
    """Exit status 0, whatever has changed. Raises UserError."""
    parser.epilog = __doc__
    parser.add_argument("before", type=Path, help="a folder of results")
    parser.add_argument("after", type=Path, help="the folder to compare with it")
    parser.add_argument("--margin", type=float, help="speeds within this fraction are the same (default: the plan's)")
    parser.add_argument("--csv", type=Path, help="write the table into this file as well")
    given = parser.parse_args(words)
    if given.margin is not None and not 0 <= given.margin < 1:
        raise UserError(f"--margin: {given.margin} is not allowed; allowed: from 0 to below 1")
    changes = between(given.before, given.after, given.margin)
    console = Console(highlight=False)
    console.print(table(changes))
    for each in changes:
        if each.reason:
            console.print(Text(f"{each.name}: {each.reason}"))
    for line in made_otherwise(changes):
        console.print(Text(line))
    counts = Counter(each.change for each in changes)
    console.print(Text(", ".join(f"{count} {change}" for change, count in counts.items()), style="bold"))
    if given.csv:
        with errors_in_one_line(given.csv, "cannot be written"):
            write_csv(given.csv, CHANGES, [each.as_row() for each in changes])
    return 0


def table(changes: list[Changed]) -> Table:
    """A row for each setting."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    result.add_column("setting", overflow="fold")
    for name in ("before", "after", "ratio", "change"):
        result.add_column(name, justify="right", no_wrap=True)
    for each in changes:
        row = each.as_row()
        result.add_row(
            Text(each.name),
            number(row["before_per_second"]),
            number(row["after_per_second"]),
            _ratio(row["ratio"], row["ratio_low"], row["ratio_high"]),
            Text(each.change, style=STYLES.get(each.change, "")),
        )
    return result


def _ratio(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} ({low:.3f} to {high:.3f})"
