"""Where the lock of a stack is, and what it says. The project's own are in `envs/`. Others the login node records.

A recorded lock is that of a stack with packages of the user's, or of what a site itself offers. Its name is that of the
project's stack and a digest of all that was asked for: `torch-1a2b3c4d5e6f`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path

RECORDED = Path("results/locks")
ENTRY = re.compile(r"(?m)^([A-Za-z0-9._-]+)==([^\s;]+)(.*(?:\n[ \t]+.*)*)\n?")


def base(stack: str) -> str:
    """The project's stack that a stack is, or is made from: `torch` of `torch-1a2b3c4d5e6f`."""
    return stack.partition("-")[0]


def is_recorded(stack: str) -> bool:
    """Whether a stack's lock was recorded by the login node."""
    return "-" in stack


def lock_of(root: Path, stack: str) -> Path:
    """The lock of a stack. Recorded ones are below the working directory of the workflow."""
    return RECORDED / f"{stack}.txt" if is_recorded(stack) else root / "envs" / f"{stack}.txt"


def stacks(root: Path) -> list[str]:
    """The names of the project's stacks."""
    return sorted(path.stem for path in (root / "envs").glob("*.in") if path.stem not in ("driver", "dev"))


def pinned(lock: str, package: str) -> str | None:
    """The version of a package in a lock's text, with its label; None where the lock has it not."""
    match = re.search(rf"(?m)^{re.escape(package)}==([^\s;]+)", lock)
    return match[1] if match else None


def without(lock: str, leave_out: Callable[[str, str], bool]) -> str:
    """A lock's text without the entries of which `leave_out(name, version)` is true."""
    return ENTRY.sub(lambda entry: "" if leave_out(entry[1], entry[2]) else entry[0], lock)


def exactly(lock: str, labelled: Collection[str] = ()) -> str:
    """Each version exactly as it is locked; of the packages `labelled`, the build with the label `+cpu`.

    For `==2.13.0` pip would take a `2.13.0+cpu` or a `2.13.0+computecanada` from a folder of wheels, whose hash the
    lock need not have. For `===2.13.0` it does not.
    """
    return ENTRY.sub(lambda e: f"{e[1]}==={e[2]}{'+cpu' * (e[1] in labelled)}{e[3]}\n", lock)
