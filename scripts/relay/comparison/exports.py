"""Files of tables: CSV, which is also read again, and Parquet for programs; pictures; and how all are written."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import write_bytes, write_text
from relay.base.printable import printable
from relay.comparison.columns import Column, Columns, Row

FORMULA = ("=", "+", "-", "@")  # a spreadsheet would compute a text that begins so; ' before it says that it is one


def write_parquet(path: Path, columns: Columns, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows with typed columns, complete or not at all. A missing value and an empty text are null.

    Each column has its unit and its meaning in the metadata of its field, where they are known. Raises UserError where
    the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([pa.field(name, kinds[column.type], metadata=column.about) for name, column in columns.items()])
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


def write_csv(path: Path, columns: Columns, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows, complete or not at all. Missing values are empty; booleans are true and false."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(row.get(name)) for name in columns] for row in rows)
    write_whole(path, stream.getvalue())


def read_csv(path: Path, columns: Columns) -> list[Row]:
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
        return [{name: _value(row[name], column) for name, column in columns.items()} for row in rows]
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


def _value(text: str, column: Column) -> Any:
    if text == "":
        return None
    return column.value(text[text.startswith(tuple(f"'{each}" for each in FORMULA)) :])
