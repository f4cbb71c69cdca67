"""Identity: what is declared and changes a result, as a short hash. Comments and layout do not."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.spec.declare import bearing
from relay.spec.requirements import BUILT_IN
from relay.spec.run import GROUPS, Setting

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# The packages whose code is a part of the strategy, or of the network, that imports it.
COMPUTING = ("relay.networks", "relay.strategies", "relay.task")
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


def identity(setting: Setting, *, sources: Mapping[str, Any], **more: Any) -> str:
    """The fingerprint of what a setting declares to bear on its result, of its sources, and of what a run adds.

    Left out are names, paths, what a node must have, and the schedule of saving, evaluation and warm-up.
    """
    strategy = {name: value for name, value in vars(setting.strategy).items() if name not in ("file", "node_needs")}
    declared = {"task": setting.task, "dataset": setting.dataset, "strategy": strategy}
    declared |= {name: bearing(getattr(setting, name), "identity") for name, _ in GROUPS}
    return fingerprint({"declared": declared | more, "sources": dict(sources)})


def task_sources(root: Path, network: str) -> list[Path]:
    """The files whose code is a task: its network's, and how model, loss and optimiser are made of it."""
    package = root / "scripts" / "relay"
    return sorted(_with_imported({package / "networks" / f"{network}.py", package / "task" / "task.py"}, COMPUTING))


def module_sources(root: Path, *modules: str) -> list[Path]:
    """The files of these modules, such as `equivalence.gate`, and of all modules that they import, directly or not.

    Strategies are loaded by name and not imported: `strategy_sources` has those of one.
    """
    package = root / "scripts" / "relay"
    return sorted(_with_imported({package / f"{module.replace('.', '/')}.py" for module in modules}, ("relay",)))


def strategy_sources(path: Path) -> list[Path]:
    """A strategy's file, the contract, its folder's `_*.py`, and what they import of the packages that compute."""
    path = path.resolve()
    found = {path, BUILT_IN.resolve() / "base.py"}
    if path.parent != BUILT_IN.resolve():  # whose helpers are found below it only in a run's snapshot of the code
        found.update(p for p in path.parent.glob("_*.py") if p.name != "__init__.py")
    return sorted(_with_imported(found, COMPUTING))


def _with_imported(paths: set[Path], packages: Sequence[str]) -> set[Path]:
    """The files, and all files of these packages that they import, directly or through each other."""
    # A strategy of another folder imports the project's own package.
    folder = next((p for path in sorted(paths) for p in path.parents if p.name == "relay"), BUILT_IN.parent)
    found, waiting = set(paths), sorted(paths)
    while waiting:
        more = _imported(_read(waiting.pop()), folder, packages) - found
        found |= more
        waiting += sorted(more)
    return found


def _imported(source: str, folder: Path, packages: Sequence[str]) -> set[Path]:
    """Files of the package in `folder` that the source imports by name, such as `relay.strategies.ddp`."""
    nodes = list(ast.walk(ast.parse(source)))
    modules = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module and not n.level}
    modules |= {f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    modules |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    wanted = [m.split(".")[1:] for m in modules if any(f"{m}.".startswith(f"{package}.") for package in packages)]
    files = (folder.joinpath(*parts) for parts in wanted)
    return {file for path in files for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()}


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
