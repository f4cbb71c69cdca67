"""The map in docs/architecture.md is the house: every import of the package runs downwards in its table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "scripts" / "relay"


def layers(text: str) -> list[str]:
    """The packages of the table, the topmost first."""
    return re.findall(r"(?m)^\| [a-z]+ \| `([a-z_]+)` \|", text)


ALONE = "chain"  # also copied beside a script, under another name: it names its own files by relative imports


# One runs such scripts, and reads what they tell. The other asks it who may write.
READ_ALONE = ("script", "run_folder")


def imported(source: str, *, alone: bool = False) -> Iterator[str]:
    """The packages below `relay` that a source imports, wherever the import stands."""
    relative = re.search(r"(?m)^ *from \.(\.)?", source)
    assert not relative or (alone and not relative[1]), "a relative import"
    yield from re.findall(r"(?m)^ *(?:from|import) relay\.(\w+)", source)
    for names in re.findall(r"(?m)^ *from relay import (.+)", source):
        yield from (name.split()[0] for name in names.split(", "))


def upward(order: list[str], package: str, source: str) -> list[str]:
    """The packages that a file of `package` imports from above."""
    if package == ALONE:
        return [*imported(source, alone=True)]
    from_alone = ALONE if package not in READ_ALONE else ""
    return [name for name in imported(source) if order.index(name) < order.index(package) or name == from_alone]


def test_the_table_names_every_package_once() -> None:
    order = layers((ROOT / "docs/architecture.md").read_text())
    assert sorted(order) == sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_")


def test_every_import_runs_downwards() -> None:
    order = layers((ROOT / "docs/architecture.md").read_text())
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE]
    found = {str(path): upward(order, path.relative_to(PACKAGE).parts[0], path.read_text()) for path in files}
    assert {path: names for path, names in found.items() if names} == {}
