"""Identity: what is declared and changes a result, as a short hash. Comments and layout do not."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from relay.errors import UserError
from relay.requirements import BUILT_IN
from relay.run import Run

# Names, places, and what only says when to save, look or measure: none of them changes what is computed.
NO_IDENTITY = ("id", "setting", "strategy_file", "checkpoint_minutes", "evaluate_every_steps", "warmup_steps")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Whose code decides, below `scripts/relay/`, what the reference computes, and what a gate's verdict is.
REFERENCE_SOURCES = ("reference.py", "trials.py", "task.py", "network.py", "data.py")
GATE_SOURCES = (
    *REFERENCE_SOURCES,
    "gate.py",
    "division.py",
    "verdict.py",
    "sent.py",
    "ranks.py",
    "joined.py",
    "strategies/base.py",
)
# Modules that are a part of the strategy, or of the network, that imports them.
FOLLOWED = (
    "relay.strategies.",
    "relay.networks.",
    "relay.network",
    "relay.scaler",
    "relay.schedules",
    "relay.stages",
    "relay.tensor_plan",
)
# Such as `torch==2.13.0 \` or `cuda-bindings==13.5.0 ; sys_platform == 'linux'`: name and version count.
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")


def fingerprint(payload: Any) -> str:
    """12 hex digits of the SHA-256 of the payload as canonical JSON (sorted keys, tuples as lists)."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_members)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _members(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} has no place in an identity")


def identity(run: Run, *, leave_out: Iterable[str] = (), **sources: Any) -> str:
    """A run's fingerprint: its values but for `NO_IDENTITY` and `leave_out`, and its sources' digests."""
    omitted = {*NO_IDENTITY, *leave_out}
    declared = {name: value for name, value in _members(run).items() if name not in omitted}
    return fingerprint({"declared": declared, "sources": sources})


def task_sources(root: Path, network: str) -> list[Path]:
    """The files whose code is a task: its network's, and how model, loss and optimiser are made of it."""
    package = root / "scripts" / "relay"
    return sorted(_with_imported({package / "networks" / f"{network}.py", package / "task.py"}, package))


def package_sources(root: Path, names: Iterable[str]) -> list[Path]:
    """Files of the package by their names in it, such as those of `GATE_SOURCES`."""
    return [root / "scripts" / "relay" / name for name in names]


def strategy_sources(path: Path) -> list[Path]:
    """A strategy's file, the contract, its folder's `_*.py`, and the modules for strategies that it imports."""
    path = path.resolve()
    found = {path, BUILT_IN.resolve() / "base.py"}
    if path.parent != BUILT_IN.resolve():  # whose helpers are found below it only in a run's snapshot of the code
        found.update(p for p in path.parent.glob("_*.py") if p.name != "__init__.py")
    return sorted(_with_imported(found, BUILT_IN.resolve().parent))


def _with_imported(paths: set[Path], package: Path) -> set[Path]:
    """The files, and those of the package's `FOLLOWED` that they import by name, at any remove."""
    found, waiting = set(paths), sorted(paths)
    while waiting:
        more = {file for file in _imported(_read(waiting.pop()), package) if file not in found}
        found |= more
        waiting += sorted(more)
    return found


def _imported(source: str, package: Path) -> set[Path]:
    """Files of the package that the source imports by name, such as `relay.strategies.ddp`."""
    nodes = list(ast.walk(ast.parse(source)))
    modules = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module and not n.level}
    modules |= {f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    modules |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    paths = (package / f"{m.removeprefix('relay.').replace('.', '/')}.py" for m in modules if m.startswith(FOLLOWED))
    return {path for path in paths if path.is_file()}


def source_digest(paths: Iterable[Path]) -> str:
    """SHA-256 (hex) of Python files as syntax trees; the same on every Python version and in every folder.

    Raises UserError for a file that is missing or is no Python.
    """
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda p: (p.name, str(p))):
        source = _read(path)
        try:
            tree = _tree(source)
        except SyntaxError as error:
            raise UserError(f"{path}:{error.lineno}: no valid Python: {error.msg}") from None
        digest.update(f"{path.name}\0{tree}\0".encode())
    return digest.hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


@lru_cache(maxsize=256)
def _tree(source: str) -> str:
    return json.dumps(_plain(ast.parse(source)))


def _plain(node: Any) -> Any:
    """A syntax tree as nested lists. Not `ast.dump`: its text and its empty fields differ between Pythons."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    members = {name: value for name, value in ast.iter_fields(node) if name not in ("kind", "type_comment")}
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        members["body"] = node.body[1:]
    given = {name: _plain(value) for name, value in sorted(members.items()) if value is not None and value != []}
    return [type(node).__name__, given]


def lock_lines(path: Path) -> list[str]:
    """The `name==version` lines of a stack's lock, sorted; hashes say where it comes from, not what it is.

    Raises UserError where there is none.
    """
    found = (_PINNED.match(line) for line in _read(path).splitlines())
    lines = sorted(f"{m[1].lower().replace('_', '-')}=={m[2]}" for m in found if m)
    if not lines:
        raise UserError(f"{path}: no line of the form name==version; make the lock again")
    return lines
