"""Versions of torch and of Python, as far as strategies depend on them."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The oldest on which any of this was tried. A strategy that needs a newer one says so in its requirements.
LEAST = {"torch": "2.5", "python": "3.11"}
VERSION = r"[0-9]+(\.[0-9]+){1,2}"
NAMES = {"torch": "torch", "python": "Python"}


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what a build adds: (2, 5, 1) of "2.5.1+cu124"."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def too_old(name: str, found: str, least: str) -> str | None:
    """What is missing where `name` ("torch", "python") is older than the least version; None where it is not."""
    if release(found) >= release(least):
        return None
    return f"needs {NAMES[name]} {least} or newer, has {found}"


def needed(least_torch: str, least_python: str) -> tuple[str, ...]:
    """What a strategy needs above LEAST, as preflight reads it: ("torch>=2.9",)."""
    wanted = {"torch": least_torch, "python": least_python}
    return tuple(f"{name}>={least}" for name, least in wanted.items() if release(least) > release(LEAST[name]))


def least_of(needs: Sequence[str], name: str) -> str:
    """The least version of `name` that these needs ask for, LEAST where none does."""
    asked = [need.partition(">=")[2] for need in needs if need.startswith(f"{name}>=")]
    return max([LEAST[name], *asked], key=release)
