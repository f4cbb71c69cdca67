"""Texts that the report and the terminal share: numbers with few digits, and the finding in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from relay.comparison.columns import Row, category, told_speed
from relay.spec.labels import setting_labels

MISSING = "–"
MOST_TIES = 4  # named in a sentence, with the best one


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits and thousands separated, such as '20,500'; '–' for None."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def small(value: Any) -> str:
    """A figure of the gate, such as '2.9e-13'. Text and whole numbers stay as they are."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.2g}" if math.isfinite(value) else "not finite"
    return str(value)


def percent(value: float | None, decimals: int = 1) -> str:
    """A fraction as a percentage, such as '97.2 %' for 0.972; '–' for None."""
    return MISSING if value is None else f"{100 * value:.{decimals}f} %"


def spread(row: Mapping[str, Any]) -> str:
    """The interval of the speed as '±2.1 %', or as '×÷2.5' for a wide one; '' for one repeat, which has none."""
    low, high = row.get("samples_per_second_low"), row.get("samples_per_second_high")
    if not low or not high:
        return ""
    # The interval is symmetric in the logarithm, so that one factor describes both ends.
    factor = math.sqrt(high / low)
    return f"±{number(100 * (factor - 1), 2)} %" if factor < 1.5 else f"×÷{number(factor, 2)}"


def headlines(rows: Sequence[Row]) -> list[str]:
    """The finding for each task, in a few sentences."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    labels = setting_labels(rows)
    if not rows:
        return ["Nothing was measured: the plan holds no run."]
    return [
        (f"{task}: " if len(tasks) > 1 else "")
        + _finding([(row, label) for row, label in zip(rows, labels, strict=True) if row["task"] == task])
        for task in tasks
    ]


def _finding(rows: Sequence[tuple[Row, str]]) -> str:
    named = [(row, f"{row['strategy']} ({label})") for row, label in rows]
    best = next(((row, name) for row, name in named if row["standing"] == "best"), None)
    if best is None:
        return f"No setting was measured and shown equivalent: {_left_out(rows)}."
    ties = [row for row, _ in named if row["standing"] in ("best", "tie")]
    accuracies = [percent(row["test_accuracy"]) for row in ties[:MOST_TIES] if row["test_accuracy"] is not None]
    sentences = [_lead(best, [(row, name) for row, name in named if row["standing"] not in (None, "best")])]
    if accuracies:
        order = ", in the same order" if len(ties) > 1 else ""
        sentences.append(f"Test accuracy{order}: {listing(accuracies)}.")
    sentences += _warned(named)
    if left := _left_out(rows):
        sentences.append(f"Left out: {left}.")
    return " ".join(sentences)


def _warned(named: Sequence[tuple[Row, str]]) -> list[str]:
    """A sentence with the first warning of the rows; of more it has the number."""
    warned = [(row, name) for row, name in named if row["warning"]]
    if not warned:
        return []
    row, name = warned[0]
    more = f" ({len(warned) - 1} more settings have a warning.)" if len(warned) > 1 else ""
    return [f"Warning: {name}: {row['warning']}.{more}"]


def _lead(best: tuple[Row, str], others: Sequence[tuple[Row, str]]) -> str:
    row, name = best
    speed = f"{number(told_speed(row))} {row['unit']}/s"
    ties = [other for other, _ in others if other["standing"] == "tie"]
    tied = [other_name for other, other_name in others if other["standing"] == "tie"]
    unclear = [(other, other_name) for other, other_name in others if other["standing"] == "unclear"]
    slower = [(other, other_name) for other, other_name in others if other["standing"] == "slower"]
    if not others:
        return f"{name} trains {speed}; there is no other setting to compare it with."
    if ties:
        shown = listing([name, *tied[: MOST_TIES - 1], *_more(tied[MOST_TIES - 1 :])])
        lead = f"A tie: {shown} train equally fast, within {100 * row['margin']:.3g} %: {speed}."
    elif unclear:
        lead = f"{name} measured fastest, {speed}, but not beyond doubt."
    else:
        behind, second = slower[0]
        lead = f"{name} is fastest: {speed}, {_times(behind)} as fast as the next, {second}."
    if unclear:
        listed = listing(
            [f"{other_name} at {_relative(other)}" for other, other_name in unclear[:3]] + _more(unclear[3:])
        )
        alone = any(other["relative_speed_low"] is None for other, _ in unclear)
        why = "With one repeat there is no spread to judge by" if alone else "Too close to call with these repeats"
        lead += f" {why}: {listed}."
    return lead


def _times(row: Mapping[str, Any]) -> str:
    """How many times as fast the best row is as this one (1 / relative speed), with its interval."""
    times = f"{1 / row['relative_speed']:.2f} times"
    if row["relative_speed_low"] is None:
        return times
    return f"{times} (95 % interval {1 / row['relative_speed_high']:.2f} to {1 / row['relative_speed_low']:.2f})"


def _relative(row: Mapping[str, Any]) -> str:
    """The speed of this row relative to the best one's, with its interval."""
    times = f"{row['relative_speed']:.2f} times its speed"
    if row["relative_speed_low"] is None:
        return times
    return f"{times} (95 % interval {row['relative_speed_low']:.2f} to {row['relative_speed_high']:.2f})"


def _more(rest: Sequence[Any]) -> list[str]:
    return [f"{len(rest)} more"] if rest else []


def listing(words: Sequence[str]) -> str:
    """Words in a row, such as 'one, two and three'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _left_out(rows: Sequence[tuple[Row, str]]) -> str:
    """The number of settings left out, by category, such as '1 struck out, 2 skipped'."""
    counts: dict[str, int] = {}
    for row, _ in rows:
        what = category(row)
        if what == "done" and row.get("standing") is None:
            what = "too short to be timed"
        if what != "done":
            counts[what] = counts.get(what, 0) + 1
    return ", ".join(f"{count} {what}" for what, count in counts.items())
