"""Which processes a process has started, as the kernel tells it in /proc. Elsewhere than on Linux, none is known."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def program(pid: int) -> str:
    """The name of the program that a process runs; '' for another user's process, and where there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


def hears(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal; False where the system does not tell."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().split(b"\n"):  # its name may be anything
            if line.startswith(b"SigCgt:"):
                return bool(int(line[7:], 16) >> number - 1 & 1)
    return False


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that still run."""
    return [each for each, parent in parents().items() if parent == pid]


def descendants(pid: int, parent_of: Mapping[int, int] | None = None) -> list[int]:
    """The same, with those that they have started. `parent_of` is what `parents` has told, where that is at hand."""
    parent_of, tree = parent_of or parents(), [pid]
    for above in tree:  # it grows meanwhile
        tree += [each for each, parent in parent_of.items() if parent == above and each not in tree]
    return tree[1:]


def parents() -> dict[int, int]:
    """The parent of each process that runs; what is dead, and was not waited for, does not."""
    parent_of = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The program's name, which comes before, may have blanks and brackets.
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parent_of[int(path.parent.name)] = int(parent)
    return parent_of
