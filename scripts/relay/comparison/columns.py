"""The columns of the tables, which `columns.toml` and a run's `Summary` declare, and what they say of a setting."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from relay.run_folder.summary import Summary
from relay.spec.run import setting_fields

Row = dict[str, Any]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def listed(values: Sequence[Any]) -> str:
    """The different values, sorted and joined by semicolons."""
    return "; ".join(sorted(map(str, set(values))))


OF_TEXT: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": {"true": True, "false": False}.__getitem__,
}
POOLED: Mapping[str, Callable[[Sequence[Any]], Any]] = {"mean": mean, "max": max, "listed": listed}


@dataclass(frozen=True)
class Column:
    """A column: the type of its values, their unit, their meaning, and how the repeats' values become a setting's."""

    type: str = "str"
    unit: str = ""
    means: str = ""
    pooled: str = ""

    def value(self, text: str) -> Any:
        """The value that a text says. Raises ValueError or KeyError where it says none of this type."""
        return OF_TEXT[self.type](text)

    @property
    def about(self) -> dict[str, str]:
        """Its `unit` and `meaning`, where they are known."""
        return {name: text for name, text in (("unit", self.unit), ("meaning", self.means)) if text}


Columns = dict[str, Column]
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_PARTS: dict[str, dict[str, Column]] = {
    part: {name: Column(**declared) for name, declared in columns.items()} for part, columns in _TABLE.items()
}
# Choices and optional values are text.
DECLARED: Columns = {
    each.name: Column(each.type.__name__ if each.type in (int, float, bool) else "str", means=each.about.means)
    for each in setting_fields()
    if each.about.bears_on
}
_TYPES = get_type_hints(Summary)
# A figure that a run may lack is of a type, or None.
FIGURES: Columns = {
    each.name: Column((get_args(_TYPES[each.name]) or (_TYPES[each.name],))[0].__name__, **each.metadata)
    for each in fields(Summary)
    if each.metadata
}
POOLED_FIGURES: Columns = {name: column for name, column in FIGURES.items() if column.pooled}
COMPARISON: Columns = _PARTS["setting"] | DECLARED | _PARTS["pooled"] | POOLED_FIGURES | _PARTS["judged"]
RUNS: Columns = _PARTS["run"] | FIGURES | _PARTS["of_run"]
SCALING: Columns = _PARTS["scaling"]
CHANGES: Columns = _PARTS["changes"]


def speed_in_unit(row: Mapping[str, Any], part: str = "") -> Any:
    """The speed of a row, or a part of it ("_low", …), as a float in the task's unit; None without a speed."""
    speed = row[f"samples_per_second{part}"]
    return None if speed is None or not row["unit"] else speed * row["units_per_sample"]


def unit_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """The unit of a task's speeds. Rows of skipped settings have no unit."""
    return next((str(row["unit"]) for row in rows if row["unit"]), "samples")


def category(row: Mapping[str, Any]) -> str:
    """The category of a row: 'done', 'dropped', 'struck out' (trained, but not equivalent), 'failed' or 'skipped'."""
    if row["status"] == "done" and not (row["equivalent"] or row["unproven"]):
        return "struck out"
    return str(row["status"])


def result(row: Mapping[str, Any]) -> str:
    """What came of a row's setting: its standing or, without one, why it has none."""
    return str(row["standing"] or ("not timed" if category(row) == "done" else category(row)))


def reason_title(row: Mapping[str, Any]) -> str:
    """The heading of a row's reason: its category, or 'note' for a setting that is done."""
    return "note" if category(row) == "done" else category(row)


def eligible(row: Mapping[str, Any]) -> bool:
    """Whether a setting may be compared and recommended: finished and timed, and equivalent, or nobody can prove it."""
    return category(row) == "done" and row.get("samples_per_second") is not None
