"""The table of settings as Parquet and as Markdown: the same rows as the CSV, and readable by the usual tools."""

from __future__ import annotations

from pathlib import Path

from pyarrow import parquet

from relay.comparison.columns import COMPARISON, read_csv, write_csv
from results_tree import Tree

pytest_plugins = ["results_tree"]


def test_parquet_has_the_rows_of_the_csv_with_their_types(full: Tree) -> None:
    table = parquet.read_table(full.root / "comparison.parquet")
    assert table.to_pylist() == read_csv(full.root / "comparison.csv", COMPARISON)
    kinds = {"string": str, "int64": int, "double": float, "bool": bool}
    assert {field.name: kinds[str(field.type)] for field in table.schema} == COMPARISON


def test_no_text_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    columns = {"strategy": str, "speed": float}
    rows = [{"strategy": name, "speed": -1.5} for name in ("=1+1", "@x", "'quoted", "ddp")]
    write_csv(tmp_path / "x.csv", columns, rows)
    assert (tmp_path / "x.csv").read_text().splitlines()[1:3] == ["'=1+1,-1.5", "'@x,-1.5"]
    assert read_csv(tmp_path / "x.csv", columns) == rows
