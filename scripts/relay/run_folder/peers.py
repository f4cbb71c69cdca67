"""A rank that was killed leaves no word, and NCCL tells its peers nothing: those of its node look for it themselves."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from relay.base import lifeline
from relay.base.files import read_json_or, write_json
from relay.run_folder import attempt_name

_own: list[Path] = []  # the note of this process


def _place() -> list[str]:
    """Where a process's number means the same process: a node, and in a container its own numbers."""
    with suppress(OSError):
        return [os.uname().nodename, str(Path("/proc/self/ns/pid").readlink())]
    return [os.uname().nodename]


def _notes(attempt: str) -> str:
    return f"alive-{attempt}-*.json"


def come(work: Path, rank: int) -> None:
    """Note that this rank is here. On a full disk there is no note, and nobody looks for it."""
    note = work / _notes(attempt_name.name()).replace("*", str(rank))
    with suppress(OSError):
        write_json(note, {"rank": rank, "process": os.getpid(), "place": _place()})
        _own.append(note)


def go() -> None:
    """This process ends by itself."""
    while _own:
        with suppress(OSError):
            _own.pop().unlink()


def killed(work: Path) -> list[int]:
    """The ranks of this node whose processes are gone, although they have not ended by themselves."""
    notes = (read_json_or(path, None) for path in work.glob(_notes(attempt_name.name())))
    here = (note for note in notes if isinstance(note, dict) and note.get("place") == _place())
    return sorted(note["rank"] for note in here if not lifeline.alive(note["process"]))


def forget(work: Path) -> None:
    """Remove the notes that killed ranks have left, of whatever attempt."""
    for note in work.glob(_notes("*")):
        with suppress(OSError):
            note.unlink()
