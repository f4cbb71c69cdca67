"""The software environment of a stack: what is installed, beside what its lock pins."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from relay.files import sha256
from relay.fingerprint import lock_lines


def describe(lock: Path) -> dict[str, Any]:
    """The interpreter, the lock's hash, and for each package of the lock the versions pinned and the one installed.

    A lock may pin another version for another Python. Another version than the lock's is recorded, not refused;
    `differs` names those packages.
    """
    pinned: dict[str, list[str]] = {}
    for line in lock_lines(lock):
        name, _, pin = line.partition("==")
        pinned.setdefault(name, []).append(pin)
    installed = {name: _installed(name) for name in pinned}
    # "2.13.0+cpu" is a build of 2.13.0.
    differs = sorted(n for n, found in installed.items() if found is None or found.split("+")[0] not in pinned[n])
    return {
        "lock": lock.name,
        "lock_sha256": sha256(lock),
        "python": platform.python_version(),
        "executable": sys.executable,
        "pinned": pinned,
        "installed": installed,
        "differs": differs,
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
