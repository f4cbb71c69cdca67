"""Texts that all parts of the answer share: numbers with few digits, ratios, times, and lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relay.base.clock import duration
from relay.comparison.columns import speed_in_unit
from relay.spec.labels import counted

if TYPE_CHECKING:  # the planner, which needs figures in words, is spared numpy
    from relay.comparison.statistics import Estimate

MEBIBYTE = 2**20
MISSING = "–"
MOST_NAMED = 3  # settings in a sentence
WIDE = 1.2  # a factor: from here on, the two sides of an interval are told apart
USELESS = 10  # a factor: an interval that reaches so far to both sides says nothing
FAR = 1000  # a factor: more is told as more than this


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


def relative(value: float | None) -> str:
    """A speed relative to another one, such as '0.97'; '–' for None."""
    return MISSING if value is None else f"{value:.2f}"


def spread(row: Mapping[str, Any]) -> str:
    """The 95 % interval of the speed beside it: '±2.1 %', or '-52/+110 %' for a wide one; '' for one repeat."""
    low, high = row.get("samples_per_second_low"), row.get("samples_per_second_high")
    if not low or not high:
        return ""
    # The interval is symmetric in the logarithm: narrow, it is as good as symmetric.
    factor = math.sqrt(high / low)
    if factor > USELESS:
        return f"over +{number(100 * (USELESS - 1))} %"
    less, more = (number(100 * abs(edge - 1), 2) for edge in (1 / factor, factor))
    return f"±{more} %" if factor < WIDE else f"-{less}/+{more} %"


def speed_and_spread(row: Mapping[str, Any]) -> str:
    """The speed of a row in the task's unit, with its interval: '20,500 ±2.1 %'; '–' without one."""
    return " ".join(filter(None, (number(speed_in_unit(row)), spread(row))))


def standings_mean(of_a_tie: float) -> dict[str, str]:
    """What a setting's standing beside the fastest one says, with the margin of a tie."""
    return {
        "tie": f"as fast as the fastest, within {margin(of_a_tie)}",
        "slower": f"than the fastest, by more than {margin(of_a_tie)}",
        "unclear": "the 95 % intervals do not tell whether it is a tie or slower",
    }


def times(ratio: Estimate) -> str:
    """A ratio of speeds, such as '0.86 times'."""
    return f"{_factor(ratio.value)} times"


def as_fast(ratio: Estimate, over: str = "") -> str:
    """The same with what it compares and its interval: '0.86 times as fast over … (between 0.84 and 0.88)'."""
    return f"{times(ratio)} as fast{over}{between(ratio)}"


def between(ratio: Estimate) -> str:
    """Its 95 % interval, such as ' (between 0.84 and 0.88)', to stand behind it; '' where there is none."""
    if not ratio.low or not ratio.high:
        return ""
    return f" (between {_factor(ratio.low)} and {_factor(ratio.high)})"


def _factor(value: float) -> str:
    """A ratio with two decimals; a small or a large one with two digits that say something."""
    if not 1 / FAR <= value <= FAR:
        return f"under {1 / FAR:g}" if value < 1 else f"over {FAR:,}"
    return f"{value:.2f}" if 0.1 <= value < 100 else number(value, 2)


def minutes(value: int) -> str:
    """Minutes in words."""
    return f"{counted(value, 'minute')}" if value < 180 else f"{number(value / 60, 2)} hours"


def listing(words: Sequence[str]) -> str:
    """Words in a row, such as 'one, two and three'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def some(words: Sequence[str]) -> list[str]:
    """The first few words, and how many more there are."""
    left = len(words) - MOST_NAMED
    return [*words[:MOST_NAMED], f"{left} more"] if left > 1 else list(words)


def mebibytes(value: int | None) -> str:
    """Bytes as MiB."""
    return MISSING if value is None else number(value / MEBIBYTE)


def whole(value: float) -> str:
    """A number with all its digits and thousands separated, such as '32' or '247,400'."""
    return f"{value:,.10g}"


def margin(value: float) -> str:
    """The margin of a tie, such as '3 %'."""
    return f"{100 * value:.3g} %"


FIGURES = (number, small, percent, relative, times, as_fast, between, duration, minutes, listing, some, margin,
           mebibytes, whole)  # fmt: skip
