"""The comparison as a table for the terminal, as wide as COLUMNS says, or else 80 columns."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from relay.comparison import columns, words
from relay.comparison.choice import BEYOND
from relay.comparison.columns import MISSING, Row
from relay.comparison.inputs import inputs_of
from relay.comparison.setting_result import quality
from relay.comparison.table import comparison_rows
from relay.spec.labels import counted, setting_labels

_STYLES = {
    "fastest": "bold green",
    "tie": "green",
    "struck out": "red",
    "failed": "red",
    "skipped": "dim",
    "dropped": "dim",
}
UNPROVEN = "not proven"
_FIGURE: dict[str, Any] = {"justify": "right", "no_wrap": True}
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
            for title, text in ((columns.reason_title(row), row["reason"]), ("warning", row["warning"])):
                if text:
                    console.print(Text(f"{row['strategy']} ({label}), {title}:", style="bold"))
                    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
        console.print()
    if not rows:
        console.print(Text("Nothing was measured: the plan holds no run."))
    for answer in answers:
        console.print(Text(answer["sentence"], style="bold"))
        beyond = any(each["category"] in BEYOND for each in answer["left_out"])
        if answer["recommended"] or beyond:  # else it would say again what is said of each row
            console.print(Text(answer["certainty_in_short"]))
        if answer["script"]:
            console.print(Text(f"Submit it: sbatch {report.with_name(answer['script'])}"), soft_wrap=True)
            console.print(Text("Its comments and the report say why, and what would make it certain."))
    # Not wrapped, so that even a long path can be copied.
    console.print(Text(f"Report: {report}"), soft_wrap=True)


def _legend(rows: Sequence[Row], marks: tuple[str, str, str]) -> list[str]:
    """What the words and signs of the table mean: those that it shows."""
    return words.lines("legend.j2", rows=rows, marks=marks, not_proven=UNPROVEN)


def _table(
    rows: Sequence[tuple[Row, str]], recommended: Collection[str], *, width: int, marks: tuple[str, str, str]
) -> Table:
    unit, learnt = columns.unit_of(row for row, _ in rows), quality(row for row, _ in rows)
    fastest = max((row["samples_per_second"] or 0 for row, _ in rows), default=0) or 1
    evaluated = any(row[learnt.column] is not None for row, _ in rows)  # nobody evaluates most scripts

    def cells(row: Row, label: str) -> Iterator[tuple[str, dict[str, Any], Text]]:
        """The heading of each column, how it is laid out, and the row's text in it."""
        # In terminals without strike-through, the words and the gate's mark say the same.
        struck = "strike" if row["equivalent"] is False else ""
        if width < _NARROW:
            yield "strategy\nsetting", {"overflow": "fold", "ratio": 1}, Text(f"{row['strategy']}\n{label}")
        else:
            yield "strategy", {"overflow": "fold"}, Text(row["strategy"])
            yield "setting", {"overflow": "fold", "ratio": 1}, Text(label)
        yield f"{unit}/s", _FIGURE, Text(columns.speed_and_spread(row), style=struck)
        if width >= _WIDE:
            yield "", {}, Text(marks[2] * round(_BAR * (row["samples_per_second"] or 0) / fastest), style=struck)
        beside_fastest = f"{columns.relative(row['relative_speed'])} " if row["standing"] else ""
        outcome = Text(
            beside_fastest + columns.result(row), style=_STYLES.get(row["standing"] or columns.category(row), "")
        )
        outcome.append("\nrecommended" if row["setting"] in recommended else "", style="bold green")
        yield "relative", {"no_wrap": True}, outcome
        if evaluated:
            heading = "acc. %" if learnt.name == "accuracy" else learnt.name
            yield f"test\n{heading}", _FIGURE, Text(learnt.as_text(row[learnt.column]).removesuffix(" %"), style=struck)
        gate = UNPROVEN if row["unproven"] else {None: MISSING, True: marks[0], False: marks[1]}[row["equivalent"]]
        gate += " lossy" if row["equivalent"] and row["lossy"] else ""
        yield "gate", {"justify": "center", "no_wrap": True}, Text(gate, "green" if row["equivalent"] else "red")

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading, layout, _ in cells(*rows[0]):
        table.add_column(heading, **layout)
    for each in rows:
        table.add_row(*(text for *_, text in cells(*each)))
    return table


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
    kind = columns.category(row)
    if kind not in ("done", "struck out"):
        return f"{kind}: {row['reason']}"
    speed = f"{columns.speed_and_spread(row)} {row['unit']}/s in {counted(row['repeats'], 'repeat')}"
    against = row["reason"] if row["unproven"] else f"NOT proven: {row['reason']}"
    proof = "proven to train the same as one process" if row["equivalent"] else against
    return f"{speed if columns.speed_in_unit(row) else 'not timed'}; {proof}"
