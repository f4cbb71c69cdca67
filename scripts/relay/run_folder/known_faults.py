"""What an error's text says: of which kind it is, and what the user can do.

The one lookup, in `known_faults.toml`, for Python's processes and their jobs, the probe and preflight, users' commands,
the C++ program, jobs' logs, gates whose strategy raised, and what Slurm says of requests and of jobs that wait.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from relay.base.ending import FREE_SPACE
from relay.base.errors import UserError


class Kind(StrEnum):
    """What has happened; `relay.run_folder.try_again` has what it means for another try."""

    LOST_PEER = "lost peer"  # another process is gone or silent, and it has the reason
    BUSY = "busy"  # something else was at work there
    HARDWARE = "hardware"
    DEVICE = "device"  # a GPU has ended the process's work, and another process's fault may have ended it
    HANG = "hang"
    MEMORY = "memory"  # to a probe it says that the size does not fit
    SETUP = "setup"


@dataclass(frozen=True)
class Row:
    """A row: the thing that is wrong in a word or two, patterns of what the text has in it, the remedy, the kind."""

    name: str
    texts: Sequence[str]
    remedy: str = ""
    kind: Kind = Kind.SETUP

    @classmethod
    def of(cls, row: dict[str, Any]) -> Row:
        """From the file's row. What helps against a full disk is told elsewhere as well, in the same words."""
        remedy = row.get("remedy", "").replace("FREE_SPACE", FREE_SPACE)
        return cls(row["name"], row["texts"], remedy, Kind(row.get("kind", Kind.SETUP)))


MetBy = Literal["processes", "commands", "cpp", "logs", "output", "nccl", "srun", "gates", "slurm", "waits"]
FILE = Path(__file__).with_suffix(".toml")
TABLE = {met_by: [*map(Row.of, rows)] for met_by, rows in tomllib.loads(FILE.read_text(encoding="utf-8")).items()}
TABLE["commands"] += TABLE["processes"]  # a command may meet what Python's processes do


def look_up(text: str, met_by: MetBy = "processes") -> Row | None:
    """The first row that fits an error's text; None for what nobody has met yet, which is the program's own."""
    return next((row for row in TABLE[met_by] if re.search("|".join(row.texts), text)), None)


def text_of(error: BaseException) -> str:
    """An error's types and texts, with what led to it, in one line. A mistake speaks for itself: it is all of it."""
    line = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, UserError) or error.__cause__ is None:
        return line
    return f"{line}; {text_of(error.__cause__)}"
