"""The tables in further formats: Markdown for people's notes, Parquet for programs, CSV for both."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from relay.base.errors import UserError
from relay.base.files import write_bytes, write_text
from relay.base.grouped import grouped
from relay.base.printable import printable
from relay.comparison import scaling
from relay.comparison.answer import Answer
from relay.comparison.columns import MEASURED, Row, reason_title, result, speed_in_unit, unit_of
from relay.comparison.measured import SettingResult
from relay.comparison.quality import quality
from relay.comparison.scaling import Grid
from relay.comparison.wording import MISSING, mebibytes, number, percent, relative, small, speed_and_spread
from relay.comparison.words import in_short, sentence
from relay.spec.run import setting_fields

# The unit of a figure by the end of its name; the first that fits.
UNITS = {
    "samples_per_second": "samples/s",
    "_seconds": "s",
    "_bytes": "bytes",
    "_bytes_written": "bytes",
    "_bytes_read": "bytes",
    "_hours": "h",
    "_watts": "W",
    "_joules": "J",
    "_mhz": "MHz",
    "_minutes": "min",
}
FRACTIONS = (
    *("_fraction", "_utilisation", "_activity", "_efficiency", "_accuracy", "_ratio"),
    *("relative_speed", "goodput", "margin"),
)
PARTS = {"_low": "lower end of the 95 % interval", "_high": "upper end of the 95 % interval"}
FORMULA = ("=", "+", "-", "@")  # a spreadsheet would compute a text that begins so; ' before it says that it is one


def markdown(settings: Sequence[SettingResult], answers: Sequence[Answer]) -> str:
    """The table of settings with a heading for all that is trained, the answer, and why settings were left out."""
    parts = []
    for answer in answers:
        its = [each for each in settings if each.row["trained"] == answer.trained]
        unit = unit_of(each.row for each in its)
        shown = [_shown(each, unit) for each in its]
        notes = [f"- {each.name}, {reason_title(each.row)}: {each.row['reason']}" for each in its if each.row["reason"]]
        parts += [
            f"## {_cell(answer.trained)}",
            _table(shown),
            _cell(f"{sentence(answer)} {in_short(answer)}"),
            "\n".join(map(_cell, notes)),
        ]
    return "\n\n".join(filter(None, parts or ["Nothing was measured."])) + "\n"


def scaling_markdown(rows: Sequence[Row], grids: Sequence[Grid]) -> str:
    """The scaling table with a heading for each kind of scaling of what is trained; then the grids."""
    parts = []
    for (what, kind), alike in grouped(rows, lambda row: (row["trained"], row["scaling"])).items():
        same = "the same global batch" if kind == "strong" else "the same batch per device"
        parts.append(f"## {what}: {kind} scaling ({same})\n\n{_table([*map(scaling.shown, alike)])}\n")
    parts += [f"## {grid.heading}\n\n{_table(grid.rows, grid.columns)}\n" for grid in grids]
    return "\n".join(parts) or "No setting was measured on several numbers of devices.\n"


def _table(rows: Sequence[Any], headers: str | Sequence[str] = "keys") -> str:
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def _shown(setting: SettingResult, unit: str) -> dict[str, str]:
    """A setting's figures as texts, by heading. The speed of one that was struck out is struck out, too."""
    row, learnt, speed = setting.row, quality([setting.row]), speed_and_spread(setting.row)
    texts = {
        "strategy": row["strategy"],
        "setting": setting.label,
        f"speed ({unit}/s)": f"~~{speed}~~" if row["equivalent"] is False and speed != MISSING else speed,
        "relative": relative(row["relative_speed"]),
        "result": result(row),
        "per device": number(speed_in_unit(row, "_per_device")),
        "scaling efficiency": percent(row["scaling_efficiency"], 0),
        "peak memory (MiB)": mebibytes(row["peak_memory_bytes"]),
        f"test {learnt.name}": learnt.as_text(row),
        "largest loss difference": small(row["max_loss_difference"]),
        "goodput": percent(row["goodput"], 0),
        "repeats": MISSING if row["repeats"] is None else f"{row['repeats']} of {row['repeats_planned']}",
    }
    return {heading: _cell(text) for heading, text in texts.items()}


def _cell(text: str) -> str:
    """A text that cannot end its cell or its line, and is neither HTML nor a link."""
    return " ".join(printable(str(text)).split()).replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


def write_parquet(path: Path, columns: Mapping[str, type], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows with typed columns, complete or not at all. A missing value and an empty text are null.

    Each column has its unit and its meaning in the metadata of its field, where they are known. Raises UserError where
    the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([pa.field(name, kinds[kind], metadata=about(name)) for name, kind in columns.items()])
    stream = io.BytesIO()
    table = pa.Table.from_pylist(
        [{name: None if row.get(name) == "" else row.get(name) for name in columns} for row in rows], schema=schema
    )
    parquet.write_table(table, stream)
    try:
        write_bytes(path, stream.getvalue())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def write_pictures(folder: Path, pictures: Mapping[str, str]) -> None:
    """Write SVG files by their names, in place of those of a former comparison. Raises UserError where it cannot be."""
    remove_old(folder, "*.svg")
    for name, svg in pictures.items():
        write_whole(folder / f"{name}.svg", svg)


def about(name: str) -> dict[str, str]:
    """A column's `unit` and `meaning`, where they are known. A part of a whole has the unit 1."""
    plain, part = name, ""
    for end, words in PARTS.items():
        if name.endswith(end):
            plain, part = name.removesuffix(end), words
    per_device = plain.endswith("_per_device")
    plain = plain.removesuffix("_per_device")
    unit = next((unit for end, unit in UNITS.items() if plain.endswith(end) or f"{end}_" in plain), None)
    if plain.endswith(FRACTIONS):
        unit = "1"
    meanings = {each.name: each.about.means for each in setting_fields()}
    meanings |= {each: measured.means for each, measured in MEASURED.items()}
    meaning = meanings.get(name) or part or ("of each device" if per_device else "")
    return {key: value for key, value in (("unit", unit), ("meaning", meaning)) if value}


def write_csv(path: Path, columns: Mapping[str, type], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows, complete or not at all. Missing values are empty; booleans are true and false."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(row.get(name)) for name in columns] for row in rows)
    write_whole(path, stream.getvalue())


def read_csv(path: Path, columns: Mapping[str, type]) -> list[Row]:
    """The inverse of `write_csv`, with typed values; an empty one is None.

    Raises UserError where the file is missing, unreadable, or from another version.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; the comparison makes it, after all runs") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    try:
        return [{name: _value(row[name], kind) for name, kind in columns.items()} for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: is no table of this version ({error}); make the comparison again") from None


def write_whole(path: Path, text: str) -> None:
    """Write a text file, all of it or none. Raises UserError where it cannot be written."""
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def remove_old(folder: Path, pattern: str) -> None:
    """Remove what a former comparison has written. Raises UserError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(pattern):
            old.unlink()
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = printable(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def _value(text: str, kind: type) -> Any:
    if text == "":
        return None
    if kind is bool:
        return {"true": True, "false": False}[text]
    return kind(text[text.startswith(tuple(f"'{each}" for each in FORMULA)) :])
