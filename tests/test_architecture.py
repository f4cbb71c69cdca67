"""The map in docs/architecture.md is the house: every import of the package runs downwards in its table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "scripts" / "relay"


def layers(text: str) -> list[str]:
    """The packages of the table, the topmost first."""
    return re.findall(r"(?m)^\| [a-z]+ \| `([a-z_]+)` \|", text)


ALONE = "chain"  # also copied beside a script, under another name: it names its own files by relative imports


def imported(source: str, *, alone: bool = False) -> Iterator[str]:
    """The packages below `relay` that a source imports, wherever the import stands."""
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == (1 if alone and node.level else 0), f"a relative import, in line {node.lineno}"
            names = [f"{node.module}.{name}" for name in names]
        yield from (name.split(".")[1] for name in names if name.startswith("relay."))


def upward(order: list[str], package: str, source: str) -> list[str]:
    """The packages that a file of `package` imports from above."""
    if package == ALONE:
        return [*imported(source, alone=True)]
    return [name for name in imported(source) if order.index(name) < order.index(package)]


def test_the_table_names_every_package_once() -> None:
    order = layers((ROOT / "docs/architecture.md").read_text())
    assert sorted(order) == sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_")


def test_every_import_runs_downwards() -> None:
    order = layers((ROOT / "docs/architecture.md").read_text())
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE]
    found = {str(path): upward(order, path.relative_to(PACKAGE).parts[0], path.read_text()) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_stage_is_named_as_its_rule_file() -> None:
    rules = {path.stem for path in (ROOT / "workflow/rules").glob("*.smk")} - {
        "common",
        "jobs",
    }  # what the others share
    assert rules <= set(layers((ROOT / "docs/architecture.md").read_text()))
