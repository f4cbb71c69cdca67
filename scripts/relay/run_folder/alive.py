"""The name of an attempt, which all its processes share, and which of them are gone without a word.

The name is part of the names of what they leave in a shared folder, so that processes which outlive their attempt, or
remains of it, cannot be taken for those of a later one. A rank that was killed leaves no word, and NCCL tells its peers
nothing: those of its node look for it themselves.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from relay.base import lifeline
from relay.base.files import read_json_or, write_json

ATTEMPT = "TORCH_RELAY_ATTEMPT"  # processes inherit it from the job that starts them
NOTES = "alive-*-*.json"  # of whatever attempt
_own: list[Path] = []  # the note of this process


def begin() -> None:
    """A new attempt begins in this process, which will start the others."""
    os.environ[ATTEMPT] = secrets.token_hex(4)


def attempt() -> str:
    """The attempt to which this process belongs; "by-hand" where no job has started it."""
    return os.environ.get(ATTEMPT, "by-hand")


def come(work: Path, rank: int) -> None:
    """Note that this rank is here. On a full disk there is no note, and nobody looks for it."""
    note = work / f"alive-{attempt()}-{rank}.json"
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
    notes = (read_json_or(path, None) for path in work.glob(f"alive-{attempt()}-*.json"))
    here = (note for note in notes if isinstance(note, dict) and note.get("place") == _place())
    return sorted(note["rank"] for note in here if not lifeline.alive(note["process"]))


def _place() -> list[str]:
    """Where a process's number means the same process: a node, and in a container its own numbers."""
    with suppress(OSError):
        return [os.uname().nodename, str(Path("/proc/self/ns/pid").readlink())]
    return [os.uname().nodename]
