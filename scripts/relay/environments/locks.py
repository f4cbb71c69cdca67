"""Where the lock of a stack is. The project's own are in `envs/`. Others are recorded by the login node.

A recorded lock is that of a stack with packages of the user's, or of what a site itself offers. Its name is that of the
project's stack and a digest of all that was asked for: `torch-1a2b3c4d5e6f`.
"""

from __future__ import annotations

import re
from pathlib import Path

RECORDED = Path("results/locks")


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
    found = re.search(rf"(?m)^{re.escape(package)}==([^\s;]+)", lock)
    return found[1] if found else None
