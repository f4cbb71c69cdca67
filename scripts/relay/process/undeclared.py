"""Files that a strategy opens and does not declare are refused: nothing would notice when they change.

A declared file (`files` of the strategy's requirements) is part of the strategy's identity, and lies beside its code in
the run's snapshot. Python reports each `open` to an audit hook, which looks here for the strategy's code among the
callers. So is a module that it imports from elsewhere. A library that opens files without Python (HDF5, safetensors)
and another program are not seen.
"""
# ruff: noqa: PTH110, PTH113, PTH117, PTH118, PTH120
# Not by pathlib: this is called at every `open` of a process, with whatever it is given.

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PYTHON, LIBRARY = (".py", ".pyc"), ".so"
STANDARD_LIBRARY, INSTALLED = sysconfig.get_path("stdlib") + os.sep, f"{os.sep}site-packages{os.sep}"
PACKAGES = (INSTALLED, f"{os.sep}dist-packages{os.sep}")
# Through these a strategy reads a file itself. Other libraries open files of their own, such as compiled code.
READERS = (f"torch{os.sep}serialization.py", f"numpy{os.sep}lib{os.sep}", "<frozen ")
SYSTEM = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/etc")


class Undeclared(RuntimeError):
    """A strategy opens a file that its requirements do not declare."""


def watch(strategy_file: Path, code: Iterable[str], allowed: Iterable[Path], secret: Iterable[Path] = ()) -> None:
    """Raise Undeclared, from now on, where the strategy's code opens a file for reading that it does not declare.

    `strategy_file` is the user's own, `code` the folders from which strategies are imported, where the declared files
    are too. Below `allowed` lie the data and the run's own files. `secret` are files among these by which the strategy
    is judged. It cannot be undone in this process.
    """
    folders = [folder for each in code for folder in (each, os.path.realpath(each))]
    free = [os.path.realpath(str(folder)) for folder in (*SYSTEM, *allowed)]
    own = os.path.realpath(strategy_file.parent)
    judging = frozenset(os.path.realpath(path) for path in secret)
    sys.addaudithook(Hook(strategy_file.name, own, _below(folders), _below(free), passing(), judging))


def passing() -> tuple[str, ...]:
    """Folders of files that somebody has just written: temporary ones, those of the node's own disk, and caches."""
    disk = os.environ.get("TORCH_RELAY_NODE_DISK")
    folders = ("/tmp", tempfile.gettempdir(), str(Path.home() / ".cache"), *([disk] if disk else []))
    return _below(map(os.path.realpath, folders))


def _below(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(folder.rstrip(os.sep) + os.sep for folder in dict.fromkeys(folders))


@dataclass(frozen=True)
class Hook:
    """The audit hook. Folders end with a separator, but for `own`, that of the user's strategy."""

    strategy: str
    own: str
    code: tuple[str, ...]
    free: tuple[str, ...]
    passing: tuple[str, ...]
    secret: frozenset[str] = frozenset()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open":  # most events: `import`, `id`, …
            return
        given, flags = arguments[0], arguments[2]
        if not isinstance(given, (str, bytes, os.PathLike)) or (flags or 0) & WRITING:
            return
        path = os.fsdecode(given)
        if path.endswith(LIBRARY):
            return
        whole = os.path.realpath(path)
        refused, direct = self._code(whole) if path.endswith(PYTHON) else self._refused(path, whole)
        if refused and self._asked_by_strategy(sys._getframe(1), direct=direct):
            raise Undeclared(f"{self.strategy} opens {refused}")

    def _code(self, whole: str) -> tuple[str, bool]:
        """The same for a file of Python: a module that is neither installed nor in the run's snapshot of the code."""
        snapshots = (os.path.dirname(folder.rstrip(os.sep)) for folder in self.code)  # `relay` itself
        known = _below([*snapshots, os.path.dirname(STANDARD_LIBRARY), *map(os.path.realpath, SYSTEM)])
        if whole.startswith(known) or any(each in whole for each in PACKAGES) or not os.path.isfile(whole):
            return "", False
        return f"{whole}, a module that is neither installed nor in the run's snapshot of the code; {MODULE}", True

    def _refused(self, path: str, whole: str) -> tuple[str, bool]:
        """What is told of a path that a strategy must not open, and whether only of one that it opens itself; or ''."""
        if whole in self.secret:
            return f"{path}, by which it is judged", False
        if whole.startswith(self.code):  # where what is declared lies
            name = next(os.path.relpath(whole, folder) for folder in self.code if whole.startswith(folder))
            missing = not os.path.exists(whole) and os.path.isfile(os.path.join(self.own, name))
            return (_declare(name), False) if missing else ("", False)
        if whole.startswith(self.own + os.sep):
            return _declare(os.path.relpath(whole, self.own)), False
        absolute = os.path.isabs(path)
        if whole.startswith(self.free) or (absolute and whole.startswith(self.passing)) or not os.path.isfile(whole):
            return "", False
        return f"{path}, which its requirements do not declare; put it beside the strategy's file, and {HOW}", absolute

    def _asked_by_strategy(self, frame: FrameType | None, *, direct: bool) -> bool:
        """Whether a strategy's code is among the callers; `direct`: with nothing between but what only reads files."""
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self.code):
                return True
            reads = file.startswith(STANDARD_LIBRARY) and INSTALLED not in file
            if direct and not reads and not any(reader in file for reader in READERS):
                return False
            frame = frame.f_back
        return False


MODULE = "put it beside the strategy's file as _NAME.py, and import relay.strategies._NAME"
HOW = 'declare files=("NAME",) in `requirements`, and open Path(__file__).with_name("NAME")'


def _declare(name: str) -> str:
    return f"{name}, which is not in the run's snapshot of the code: {HOW.replace('NAME', name)}"
