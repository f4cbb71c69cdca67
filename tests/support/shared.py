"""What is made once for all tests of a session, also where pytest-xdist divides them among several processes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """The session's folder: one for all of xdist's processes."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, which the first caller makes while the others wait. Where making fails, the next caller tries again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not path.exists():
            unfinished = path.with_name(f"{path.name}.unfinished")
            make(unfinished)
            unfinished.rename(path)
    return path
