"""The text of a lock, as pip is given it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

ENTRY = re.compile(r"(?m)^([A-Za-z0-9._-]+)==([^\s;]+)(.*(?:\n[ \t]+.*)*)\n?")


def without(lock: str, leave_out: Callable[[str, str], bool]) -> str:
    """A lock's text without the entries of which `leave_out(name, version)` is true."""
    return ENTRY.sub(lambda entry: "" if leave_out(entry[1], entry[2]) else entry[0], lock)


def exactly(lock: str, labelled: Collection[str] = ()) -> str:
    """Each version exactly as it is locked; of the packages `labelled`, the build with the label `+cpu`.

    For `==2.13.0` pip would take a `2.13.0+cpu` or a `2.13.0+computecanada` from a folder of wheels, whose hash the
    lock need not have. For `===2.13.0` it does not.
    """
    return ENTRY.sub(lambda e: f"{e[1]}==={e[2]}{'+cpu' * (e[1] in labelled)}{e[3]}\n", lock)
