"""How a job ended, told by the job itself in a file beside its log: the driver reads it and decides about a retry.

A job that was killed leaves no such file. By hand, without a log, nothing is written.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relay.base.files import read_json, write_json

LOG = "TORCH_RELAY_JOB_LOG"  # the job's log; the workflow sets it
FAULT = 1
INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: worth a retry
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
FREE_SPACE = "delete what you no longer need there, or raise your quota, then start the same call again"


@dataclass(frozen=True)
class Ending:
    """The end of a job that did not do its work.

    status: FAULT, which a retry would only repeat, or INTERRUPTED. what: what happened, in a line or more.
    remedy: what the user can do. planned: the job stopped in time before its time limit, as it should.
    """

    status: int
    what: str
    remedy: str = ""
    planned: bool = False


def beside(log: Path) -> Path:
    """Where the ending of the job with this log is written."""
    return log.with_suffix(".ending.json")


def begin() -> None:
    """Remove what an earlier attempt of this job has told."""
    if log := os.environ.get(LOG):
        beside(Path(log)).unlink(missing_ok=True)


def fault(what: str, remedy: str = "") -> int:
    """Say and record a fault that a retry would only repeat; the job's exit status."""
    return _said(Ending(FAULT, what, remedy))


def interrupted(what: str, *, planned: bool = False) -> int:
    """Say and record an interruption, after which a retry goes on; the job's exit status."""
    return _said(Ending(INTERRUPTED, what, planned=planned))


def _said(ending: Ending) -> int:
    print(ending.what, file=sys.stderr, flush=True)
    record(ending)
    return ending.status


def record(ending: Ending) -> None:
    """Write down how this job ended, for the driver."""
    if log := os.environ.get(LOG):
        path = beside(Path(log))
        try:
            write_json(path, asdict(ending))
        except OSError as error:  # a full disk: the driver looks for that itself
            print(f"{path}: cannot be written: {error.strerror}", file=sys.stderr, flush=True)


def read(log: Path) -> Ending | None:
    """How the last attempt of the job with this log ended; None where it left no word."""
    found: dict[str, Any] | None = read_json(beside(log))
    return Ending(**found) if found else None
