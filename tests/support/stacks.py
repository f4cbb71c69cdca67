"""Strategies of further stacks in the tests: which there are, and how this process comes to see a stack's packages."""

from __future__ import annotations

import sys
from pathlib import Path

import debian_packages
from relay.environments import built, overlay
from relay.spec import requirements

ENVS = Path(__file__).resolve().parents[2] / "envs"


def of_stack(stack: str) -> dict[str, Path]:
    """The built-in strategies of a stack: their files by name."""
    found = requirements.find()
    return {name: path for name, path in found.items() if requirements.read(path).stack == stack}


def provide(stack: str) -> Path:
    """Make the stack's environment unless it is there, and let this process and its forks import from it.

    Returns its interpreter. The packages come last on the path, so that nothing of the driver's is hidden.
    """
    lock = ENVS / f"{stack}.txt"
    if overlay.place(lock) is None:
        return Path(sys.executable)
    if built.entries(lock.read_text(encoding="utf-8")):
        debian_packages.require()
    made = overlay.make(lock)
    packages = str(overlay.site_packages(made.resolve()))
    if packages not in sys.path:
        sys.path.append(packages)
    return made / "bin" / "python"
