"""The identity of a run: a short hash of everything that is declared and changes its result.

Code counts as its syntax tree, without docstrings: comments and layout do not change an identity.
"""

import ast
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import sha256
from relay.spec.declare import bearing
from relay.spec.requirements import BUILT_IN, declared_files, parsed, texts, unfit
from relay.spec.run import GROUPS, Setting

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where a node has statements, or what holds some
# Code in these packages counts as part of the strategy or network that imports it: also what reads and writes shards.
COMPUTING = ("relay.strategies", "relay.task", "relay.tasks", "relay.chain.sharded")


def fingerprint(payload: Any) -> str:
    """12 hex digits of the SHA-256 of the payload as canonical JSON (sorted keys, tuples as lists)."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_members)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _members(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} cannot be part of an identity; allowed: JSON values, mappings and dataclasses")


def identity(setting: Setting, *, sources: Mapping[str, Any], **more: Any) -> str:
    """The fingerprint of a setting: its fields that bear on the result, its sources' digests, and `more` from a run.

    Fields left out: names, paths, what a node must have, and the schedule of saving, evaluation and warm-up.
    """
    apart = ("file", "node_needs", "script")
    strategy: dict[str, Any] = {name: value for name, value in vars(setting.strategy).items() if name not in apart}
    if script := setting.strategy.script:
        strategy["script"] = script.identity()
    task = {name: value for name, value in vars(setting.task).items() if name not in ("file", "card")}
    declared = {"task": task, "dataset": setting.dataset, "strategy": strategy}
    groups = {name: bearing(getattr(setting, name), "identity") for name, _ in GROUPS}
    declared |= {name: values for name, values in groups.items() if values}
    return fingerprint({"declared": declared | more, "sources": dict(sources)})


def task_sources(root: Path, name: str, file: str = "") -> list[Path]:
    """The files whose code defines a task: its own, those beside it that it imports or declares, and what binds it.

    `file` is a user's; without it, `name` is a built-in task's.
    """
    package = root / "scripts" / "relay"
    own = beside(Path(file)) if file else {package / "tasks" / f"{name.replace('-', '_')}.py"}
    code = _with_ours({*own, package / "task" / "bound.py", package / "task" / "data.py"}, COMPUTING)
    return sorted({*code, *(data_beside(Path(file)) if file else ())})


def beside(file: Path, folder: Path | None = None) -> set[Path]:
    """A user's file, and the modules in `folder` that it imports, directly or through each other.

    `folder` is from where it imports: by default that in which it lies.
    """
    return _with_imported({file}, partial(_near, folder or file.parent))


def _near(folder: Path, importing: Path) -> set[Path]:
    """The files in a folder that a file imports."""
    modules = _modules(parsed(importing), _package(importing, folder))
    paths = [folder.joinpath(*module.split(".")) for module in modules]
    # Of a module within a package, the packages around it are imported, too.
    packages = {each for path in (*paths, importing) for each in path.parents if folder in each.parents}
    return _files_of({*paths, *packages} - {folder})


def data_beside(file: Path) -> set[Path]:
    """The data files that a user's task declares. One that is not there is told where the task is looked at."""
    return {file.parent / name for name in named_beside(file) if not unfit(file.parent, name)}


def named_beside(file: Path) -> set[str]:
    """What the classes of a user's file, and of the modules beside it, name in a literal `files`.

    It is read from the text, because the planner imports no task.
    """
    classes = [node for code in beside(file) for node in ast.walk(parsed(code)) if isinstance(node, ast.ClassDef)]
    return {name for owner in classes for node in owner.body for name in texts(node, "files")}


def module_sources(root: Path, *modules: str) -> list[Path]:
    """The files of these modules, such as `equivalence.gate`, and of all modules that they import, directly or not.

    Strategies are not among them, because they are loaded by name; see `strategy_sources`.
    """
    package = root / "scripts" / "relay"
    return sorted(_with_ours({package / f"{module.replace('.', '/')}.py" for module in modules}, ("relay",)))


def strategy_sources(path: Path) -> list[Path]:
    """The files that define a strategy: its own, the data files that it declares, `base.py`, and what they import.

    For a strategy outside this project, they include every helper `_*.py` beside it.
    """
    path = path.resolve()
    sources = {path, BUILT_IN.resolve() / "base.py"}
    # The helpers of an outside strategy are below `relay` only in a run's snapshot of the code. Elsewhere their imports
    # cannot be followed, so all of them count.
    if path.parent != BUILT_IN.resolve():
        sources.update(p for p in path.parent.glob("_*.py") if p.name != "__init__.py")
    return sorted({*_with_ours(sources, COMPUTING), *declared_files(path)})


def _with_ours(paths: set[Path], packages: Sequence[str]) -> set[Path]:
    """The files, and all files of these packages that they import, directly or through each other."""
    # A strategy outside this project imports this project's package.
    folder = next((p for path in sorted(paths) for p in path.parents if p.name == "relay"), BUILT_IN.parent)
    return _with_imported(paths, partial(_ours, folder, packages))


def _with_imported(files: set[Path], imported: Callable[[Path], set[Path]]) -> set[Path]:
    """The files, and all that they import, directly or through each other; `imported` tells what one file imports."""
    reached, unread = set(files), sorted(files)
    while unread:
        more = imported(unread.pop()) - reached
        reached |= more
        unread += sorted(more)
    return reached


def _ours(folder: Path, packages: Sequence[str], importing: Path) -> set[Path]:
    """The files of these packages that a file imports. `folder` is that of the package `relay`."""
    modules = _modules(parsed(importing), _package(importing, folder.parent))
    wanted = (m for m in modules if any(f"{m}.".startswith(f"{package}.") for package in packages))
    return _files_of(folder.joinpath(*module.split(".")[1:]) for module in wanted)


def _files_of(modules: Iterable[Path]) -> set[Path]:
    """The files of modules and packages that are there, by their paths without a suffix."""
    return {file for path in modules for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()}


def _package(file: Path, folder: Path) -> tuple[str, ...]:
    """The parts of the name of the package that a file is in; none for a file that does not lie in `folder`."""
    return file.parent.relative_to(folder).parts if folder in file.parents else ()


@lru_cache(maxsize=512)
def _modules(tree: ast.Module, package: tuple[str, ...]) -> frozenset[str]:
    """The names of all modules that a file of this package imports, and of what it imports from them."""
    modules = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) + 1 - node.level] if node.level else ()
            names = (node.module, *(f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names))
            modules |= {".".join(filter(None, (*around, name))) for name in names}
    return frozenset(modules)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements that may run within a node, at any depth. `ast.walk` looks at ten times as many expressions."""
    test = getattr(node, "test", None)
    typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))
    for block in BLOCKS[typing_only:]:
        for each in getattr(node, block, ()):
            yield each
            yield from _statements(each)


def source_digest(paths: Iterable[Path]) -> str:
    """SHA-256 (hex) of Python files as syntax trees, of others as bytes; the same on every Python and in every folder.

    Raises UserError for a file that is missing or is not valid Python.
    """
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda p: (p.name, str(p))):
        if path.suffix != ".py":
            digest.update(f"{path.name}\0{_content(path)}\0".encode())
            continue
        digest.update(f"{path.name}\0{_tree(parsed(path))}\0".encode())
    return digest.hexdigest()


def _content(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


@lru_cache(maxsize=256)
def _tree(tree: ast.Module) -> str:
    return json.dumps(plain_tree(tree))


def plain_tree(node: Any) -> Any:
    """A syntax tree as nested lists, without docstrings. `ast.dump` gives other texts on other versions of Python."""
    if isinstance(node, list):
        return [plain_tree(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    kind: Any = type(node)
    present: dict[str, Any] = {}
    for name in _members_of(kind):
        value = getattr(node, name, None)
        if value is not None and value != []:
            present[name] = plain_tree(value)
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        present["body"] = present["body"][1:]
        if not present["body"]:
            del present["body"]
    return [kind.__name__, present]


@cache
def _members_of(kind: Any) -> list[str]:
    return sorted({*kind._fields} - {"kind", "type_comment"})
