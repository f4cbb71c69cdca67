"""The comparison as a table for the terminal, as wide as COLUMNS says, or else 80 columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from relay.comparison import words
from relay.comparison.columns import Row, category, reason_title, told_speed, told_unit
from relay.comparison.inputs import inputs_of
from relay.comparison.quality import quality
from relay.comparison.table import comparison_rows
from relay.comparison.wording import MISSING, number, spread, standings_mean
from relay.spec.labels import setting_labels

_STYLES = {
    "fastest": "bold green",
    "tie": "green",
    "struck out": "red",
    "failed": "red",
    "skipped": "dim",
    "dropped": "dim",
}
UNPROVEN = "not proven"
_WIDE, _BAR = 120, 24  # in terminals of so many columns, speeds are also drawn as bars of so many
_NARROW = 72  # in terminals with fewer columns, strategy and setting share a column of the table


def show(console: Console, rows: Sequence[Row], report: Path, answers: Sequence[Mapping[str, Any]] = ()) -> None:
    """Print the comparison's rows, what their signs mean, why some failed or were skipped, the answer, and its files.

    `answers` are those of `answer.json`.
    """
    marks = _marks(console)
    labels = setting_labels(rows)
    recommended = {answer["recommended"]["setting"] for answer in answers if answer["recommended"]}
    for what in dict.fromkeys(row["trained"] for row in rows):
        alike = [(row, label) for row, label in zip(rows, labels, strict=True) if row["trained"] == what]
        console.print(Text(what, style="bold"))
        console.print(_table(alike, recommended, width=console.width, marks=marks))
        for line in _legend([row for row, _ in alike], marks):
            console.print(Text(line, style="dim"))
        for row, label in alike:
            for title, text in ((reason_title(row), row["reason"]), ("warning", row["warning"])):
                if text:
                    console.print(Text(f"{row['strategy']} ({label}), {title}:", style="bold"))
                    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
        console.print()
    if not rows:
        console.print(Text("Nothing was measured: the plan holds no run."))
    for answer in answers:
        console.print(Text(answer["sentence"], style="bold"))
        if answer["recommended"]:  # else it would say again what is said of each row
            console.print(Text(answer["certainty_in_short"]))
        if answer["script"]:
            console.print(Text(f"Submit it: sbatch {report.with_name(answer['script'])}"), soft_wrap=True)
            console.print(Text("Its comments and the report say why, and what would make it certain."))
    # Not wrapped, so that even a long path can be copied.
    console.print(Text(f"Report: {report}"), soft_wrap=True)


def _legend(rows: Sequence[Row], marks: tuple[str, str, str]) -> list[str]:
    """What the words and signs of the table mean: those that it shows."""
    shown = {row["standing"] for row in rows}
    spreads = list(filter(None, map(spread, rows)))
    return words.lines(
        "legend.j2",
        rows=rows,
        marks=marks,
        spreads=spreads,
        wide_spread=next((each for each in spreads if "/" in each), ""),
        unit=told_unit(rows),
        standings={name: text for name, text in standings_mean(rows[0]["margin"]).items() if name in shown},
        not_proven=UNPROVEN,
    )


def _table(
    rows: Sequence[tuple[Row, str]], recommended: Collection[str], *, width: int, marks: tuple[str, str, str]
) -> Table:
    narrow, wide = width < _NARROW, width >= _WIDE
    fastest = max((row["samples_per_second"] or 0 for row, _ in rows), default=0) or 1
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    if narrow:
        table.add_column("strategy\nsetting", overflow="fold", ratio=1)
    else:
        table.add_column("strategy", overflow="fold")
        table.add_column("setting", overflow="fold", ratio=1)
    table.add_column(f"{told_unit(row for row, _ in rows)}/s", justify="right", no_wrap=True)
    if wide:
        table.add_column("")
    table.add_column("relative\nspeed", no_wrap=True)
    learnt = quality(row for row, _ in rows)
    heading = "test\nacc. %" if learnt.name == "accuracy" else f"test\n{learnt.name}"
    evaluated = any(row[learnt.column] is not None for row, _ in rows)  # nobody evaluates most scripts
    if evaluated:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("gate", justify="center", no_wrap=True)
    for row, label in rows:
        # In terminals without strike-through, the words and the gate's mark say the same.
        struck = "strike" if row["equivalent"] is False else ""
        known = MISSING if row["equivalent"] is None else marks[0] if row["equivalent"] else marks[1]
        gate = UNPROVEN if row["unproven"] else known
        gate += " lossy" if row["equivalent"] and row["lossy"] else ""
        names = [Text(f"{row['strategy']}\n{label}")] if narrow else [Text(row["strategy"]), Text(label)]
        table.add_row(
            *names,
            Text(" ".join(filter(None, (number(told_speed(row)), spread(row)))), style=struck),
            *(
                [Text(marks[2] * round(_BAR * (row["samples_per_second"] or 0) / fastest), style=struck)]
                if wide
                else []
            ),
            _result(row).append("\nrecommended" if row["setting"] in recommended else "", style="bold green"),
            *([Text(learnt.told(row).removesuffix(" %"), style=struck)] if evaluated else []),
            Text(gate, style="green" if row["equivalent"] else "red"),
        )
    return table


def _result(row: Row) -> Text:
    """The relative speed and the standing, such as '0.63 slower', or the reason why there is no relative speed."""
    if row["standing"]:
        return Text(f"{row['relative_speed']:.2f} {row['standing']}", style=_STYLES.get(row["standing"], ""))
    return Text("not timed" if category(row) == "done" else category(row), style=_STYLES.get(category(row), ""))


def _marks(console: Console) -> tuple[str, str, str]:
    """Of a gate that passed, of one that did not, and of a bar."""
    return ("✓", "✗", "█") if console.encoding.lower().startswith("utf") else ("yes", "NO", "#")


def alone(plan: Mapping[str, Any], results: Path, strategies: Collection[str]) -> Iterator[str]:
    """Speed and proof of each setting of `strategies`. `plan` is the content of a plan.json."""
    rows = comparison_rows(inputs_of(plan, results / "plan.json", results, partial=True))
    for row, label in zip(rows, setting_labels(rows), strict=True):
        if row["strategy"] in strategies:
            yield f"{row['strategy']} ({label}): {_measured(row)}"
    yield f"This is no comparison. The same call without {' '.join(sorted(strategies))} compares all settings."


def _measured(row: Row) -> str:
    kind = category(row)
    if kind not in ("done", "struck out"):
        return f"{kind}: {row['reason']}"
    speed = told_speed(row)
    told = " ".join(filter(None, (number(speed), spread(row)))) if speed else "not timed"
    repeats = f"{row['repeats']} repeat{'s' if row['repeats'] != 1 else ''}"
    against = row["reason"] if row["unproven"] else f"NOT proven: {row['reason']}"
    proof = "proven to train the same as one process" if row["equivalent"] else against
    return f"{told} {row['unit']}/s in {repeats}; {proof}" if speed else f"{told}; {proof}"
