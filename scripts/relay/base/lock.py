"""One process at a time in a run's directory.

The lock is the kernel's (`flock`), so that it ends with its process. filelock was considered, for this lock and for the
others of the project, and does not serve: where a file system has no locks it waits on a file that a killed process
leaves behind, while a run here goes on with a warning; what it does there differs between the versions that clusters
have; the driver's environment has none. The locks of environments are also shared ones, or are inherited by installers,
and the driver's file says who holds it.
"""

import errno
import fcntl
import sys
import time
from pathlib import Path
from typing import TextIO

from relay.base.errors import Busy, UserError
from relay.chain import files

UNFIT = (errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM)  # a lock's file that is something else, or another's


def exclusive(work: Path, seconds: float | None = None) -> TextIO:
    """Hold the directory until the returned file is closed, or the process ends.

    Raises Busy where another process does not let go of it within so many seconds, by default `files.WAIT_SECONDS`, and
    UserError where its file cannot be opened. A file system without locks gets a warning.
    """
    path = work / files.LOCK
    try:
        stream, locks = files.exclusive(work, seconds)
    except files.HeldError as held:
        raise _busy(work, str(held)) from None
    except OSError as error:
        if str(error.filename) != str(path) or error.errno not in UNFIT:
            raise
        remedy = "remove it, and start the same call again"
        raise UserError(f"{path}: cannot be opened: {error.strerror}; {remedy}") from None
    if not locks:
        print(f"warning: {work}: this file system has no locks: train each run once at a time", file=sys.stderr)
    return stream


def wait_until_free(work: Path, seconds: float | None = None) -> None:
    """Return when no process holds the directory; at once where that cannot be seen.

    Raises Busy where one still does after so many seconds, by default `files.WAIT_SECONDS`.
    """
    waited_until = time.monotonic() + (files.WAIT_SECONDS if seconds is None else seconds)
    while held(work):
        if time.monotonic() > waited_until:
            raise _busy(work, files.holder(work))
        time.sleep(files.LOOK_SECONDS)


def held(work: Path) -> bool:
    """Whether a process holds the directory just now. False where that cannot be seen."""
    return locked(work / files.LOCK)


def locked(path: Path) -> bool:
    """The same of a lock's own file."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _busy(work: Path, who: str) -> Busy:
    remedy = f"wait for its end, or end that job; {files.if_dead(work)}"
    return Busy(f"{work}: another job already trains this run{f' ({who})' if who else ''}; {remedy}")
