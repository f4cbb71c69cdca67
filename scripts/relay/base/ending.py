"""How a job ended, told by the job itself in a file beside its log: the driver reads it and decides about a retry.

A job that was killed leaves no such file. Where it is given up, the driver writes there what it knows, for the report.
By hand, without a log, nothing is written.
"""

import errno
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from relay.base import typed
from relay.base.files import write_json_or_say
from relay.base.printable import printable

LOG = "TORCH_RELAY_JOB_LOG"  # the job's log; the workflow sets it
QUOTED = "\n| "  # begins a line that an error quotes, of a command's output
FAULT = 1
INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: worth a retry
FREE_SPACE = "delete what you no longer need there, or raise your quota, then start the same call again"
READ_ONLY = "it can only be read: ask your site why, or work in another folder, then start the same call again"
MOUNT_AGAIN = "the disk fails, or is not mounted any more: see that it is there, then start the same call again"
# What the user can do where a disk takes no writing, by the error's number.
OF_A_DISK = {errno.ENOSPC: FREE_SPACE, errno.EDQUOT: FREE_SPACE, errno.EROFS: READ_ONLY}
OF_A_DISK |= dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENODEV), MOUNT_AGAIN)


@dataclass(frozen=True)
class Ending:
    """The end of a job that did not do its work.

    status: FAULT, which a retry would only repeat, or INTERRUPTED. what: what happened, in a line or more.
    remedy: what the user can do. deadline: the job stopped in time before its time limit, as it should.
    node: Slurm's name of a node whose hardware failed, which another try should avoid; '' where there is none.
    """

    status: int
    what: str
    remedy: str = ""
    deadline: bool = False
    node: str = ""


def beside(log: Path) -> Path:
    """Where the ending of the job with this log is written."""
    return log.with_suffix(".ending.json")


def begin() -> None:
    """Remove what an earlier attempt of this job has told."""
    if log := os.environ.get(LOG):
        with suppress(OSError):
            beside(Path(log)).unlink()


def fault(what: str, remedy: str = "") -> int:
    """Say and record a fault that a retry would only repeat; the job's exit status."""
    return say(Ending(FAULT, what, remedy))


def interrupted(what: str, *, deadline: bool = False) -> int:
    """Say and record an interruption, after which a retry goes on; the job's exit status."""
    return say(Ending(INTERRUPTED, what, deadline=deadline))


def say(ending: Ending) -> int:
    """Say and record how this job has ended; its exit status."""
    record(ending)
    with suppress(OSError):  # the log may be on the disk that is full
        what = ending.what.partition(QUOTED)[0]  # the log has what is quoted already
        print(printable(f"remedy: {ending.remedy}\n{what}" if ending.remedy else what), file=sys.stderr, flush=True)
    return ending.status


def record(ending: Ending, log: Path | None = None) -> None:
    """Write down how the job with this log, or this very job, ended."""
    if log := log or (Path(os.environ[LOG]) if os.environ.get(LOG) else None):
        fields = asdict(ending) | {"what": printable(ending.what)}  # all who look at the results are shown it
        write_json_or_say(beside(log), fields)


def of_a_disk(error: BaseException | None) -> OSError | None:
    """An error, or the one that led to it, which says that a disk takes no writing; None where none does."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in OF_A_DISK:
            return error
        error = error.__cause__ or error.__context__
    return None


def remedy_of(error: BaseException | None) -> str:
    """What the user can do where an error, or one that led to it, says that a disk takes no writing; else ''."""
    disk_error = of_a_disk(error)
    return OF_A_DISK[disk_error.errno or 0] if disk_error else ""


def read(log: Path) -> Ending | None:
    """How the last attempt of the job with this log ended; None where it left no word."""
    return typed.read(Ending, beside(log))
