"""The tables: their columns, which `columns.toml` and a run's `Summary` declare, what these say, and their files.

A CSV file is also read again; a Parquet file is for programs. Figures are told in words here too, so that all parts of
the answer give them the same digits.
"""

from __future__ import annotations

import csv
import io
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from relay.base.clock import duration
from relay.base.errors import UserError
from relay.base.files import write_bytes, write_text
from relay.base.printable import printable
from relay.run_folder.summary import Summary
from relay.spec.labels import counted
from relay.spec.run import setting_fields

if TYPE_CHECKING:  # the planner, which needs figures in words, is spared numpy
    from relay.comparison.statistics import Estimate

Row = dict[str, Any]
FORMULA = ("=", "+", "-", "@")  # a spreadsheet would compute a text that begins so; ' before it says that it is one
MEBIBYTE = 2**20
MISSING = "–"
MOST_NAMED = 3  # settings in a sentence
WIDE = 1.2  # a factor: from here on, the two sides of an interval are told apart
USELESS = 10  # a factor: an interval that reaches so far to both sides says nothing
FAR = 1000  # a factor: more is told as more than this


def listed(values: Sequence[Any]) -> str:
    """The different values, sorted and joined by semicolons."""
    return "; ".join(sorted(map(str, set(values))))


OF_TEXT: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": {"true": True, "false": False}.__getitem__,
}
POOLED: Mapping[str, Callable[[Sequence[Any]], Any]] = {"mean": fmean, "max": max, "listed": listed}


@dataclass(frozen=True)
class Column:
    """A column: the type of its values, their unit, their meaning, and how the repeats' values become a setting's."""

    type: str = "str"
    unit: str = ""
    means: str = ""
    pooled: str = ""

    def value(self, text: str) -> Any:
        """The value that a text of a CSV file says. Raises ValueError or KeyError where it says none of this type."""
        quoted = text.startswith(tuple(f"'{each}" for each in FORMULA))
        return OF_TEXT[self.type](text[quoted:]) if text else None

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
    """'struck out' for a row of what has trained, but is not equivalent; of others, their status."""
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


def write_csv(path: Path, columns: Columns, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows. Missing values are empty; booleans are true and false. Raises OSError."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(row.get(name)) for name in columns] for row in rows)
    write_text(path, stream.getvalue())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = "" if value is None else printable(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def read_csv(path: Path, columns: Columns) -> list[Row]:
    """The inverse of `write_csv`, with typed values; an empty one is None.

    Raises UserError where the file is missing, unreadable, or from another version.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        return [{name: column.value(row[name]) for name, column in columns.items()} for row in rows]
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; the comparison makes it, after all runs") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path}: is no table of this version ({error}); make the comparison again") from None


def write_parquet(path: Path, columns: Columns, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows with typed columns. A missing value and an empty text are null. Raises OSError.

    Each column has its unit and its meaning in the metadata of its field, where they are known.
    """
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([pa.field(name, kinds[column.type], metadata=column.about) for name, column in columns.items()])
    filled = [{name: None if row.get(name) == "" else row.get(name) for name in columns} for row in rows]
    stream = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(filled, schema=schema), stream)
    write_bytes(path, stream.getvalue())


# Figures in words


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


def epochs(value: float) -> str:
    """Epochs in words, such as '1 epoch'."""
    return f"{whole(value)} epoch{'' if value == 1 else 's'}"


IN_WORDS = (number, small, percent, relative, times, as_fast, between, duration, minutes, listing, some, margin,
           mebibytes, whole, epochs)  # fmt: skip
