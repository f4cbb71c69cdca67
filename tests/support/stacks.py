"""Strategies of further stacks in the tests: which there are, and how this process comes to see a stack's packages."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

import debian_packages
from lock import FURTHER
from relay.base.errors import UserError
from relay.base.lock import held
from relay.environments import kept, overlay, versioned
from relay.spec import strategy_files

ENVS = Path(__file__).resolve().parents[2] / "envs"
TORCH, ALL = "torch", "all"
_asked = set(FURTHER)


def ask_for(names: Sequence[str]) -> None:
    """Leave out the tests of further stacks that are not among these. Raises UserError for an unknown name."""
    for name in names:
        if name not in (TORCH, ALL, *FURTHER):
            raise UserError(f"--stacks: '{name}' is not allowed; allowed: torch, all, or some of: {' '.join(FURTHER)}")
    _asked.clear()
    _asked.update(FURTHER if ALL in names else names)


def asked() -> list[str]:
    """The further stacks whose tests run."""
    return sorted(_asked & set(FURTHER))


def require(stack: str) -> None:
    """Skip the test where its stack is left out."""
    if stack in FURTHER and stack not in _asked:
        pytest.skip(f"stack {stack} is left out (--stacks, or make test STACKS=…)")


def of_stack(stack: str) -> dict[str, Path]:
    """The built-in strategies of a stack: their files by name."""
    found = strategy_files.find()
    return {name: path for name, path in found.items() if strategy_files.read(path).stack == stack}


def used_by(module: ModuleType | None) -> bool:
    """Whether a module's tests use environments of further stacks."""
    return provide in vars(module).values() if module else False


def building() -> Path:
    """What `all_stacks.py` holds while it makes environments."""
    return kept.cache() / "building-for-tests"


def wait_for_builds() -> None:
    """Return when nobody makes environments for the tests."""
    while held(building()):
        time.sleep(1)


def provide(stack: str) -> Path:
    """Make the stack's environment unless it is there, and let this process and its forks import from it.

    Returns its interpreter. The packages come last on the path, so that nothing of the driver's is hidden.
    Skips the test where the stack is left out.
    """
    require(stack)
    lock = ENVS / f"{stack}.txt"
    if overlay.place(lock) is None:
        return Path(sys.executable)
    if overlay.to_build(lock):
        debian_packages.require()
    made = overlay.make(lock)
    packages = str(versioned.site_packages(made.resolve()))
    if packages not in sys.path:
        sys.path.append(packages)
    return made / "bin" / "python"
