"""One file for each kind of dataset; the folder is the register."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from relay.base.errors import UserError
from relay.datasets.kind import Kind


@cache
def names() -> tuple[str, ...]:
    """All kinds, sorted."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))


@cache
def load(name: str) -> Kind:
    """The kind of that name: the class that its file derives from `Kind`. Raises UserError where there is none."""
    if name not in names():
        raise UserError(f"kind: {name!r} is unknown; allowed are {', '.join(names())}")
    module = import_module(f"{__name__}.{name}")
    for member in vars(module).values():
        # Not one that is only imported.
        if isinstance(member, type) and issubclass(member, Kind) and member.__module__ == module.__name__:
            return member()
    raise UserError(f"kind: {module.__file__} has no class that derives from Kind")
