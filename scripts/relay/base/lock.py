"""One process at a time in a run's directory.

The lock is the kernel's (`flock`), so that it ends with its process. filelock was considered, for this lock and for the
others of the project, and does not serve: where a file system has no locks it waits on a file that a killed process
leaves behind, while a run here goes on with a warning; what it does there differs between the versions that clusters
have; the driver's environment has none. The locks of environments are also shared ones, or are inherited by installers,
and the driver's file says who holds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from relay.base.errors import Busy, UserError
from relay.chain.files import NO_LOCKS

WAIT_SECONDS = 60.0  # what an interrupted trainer may need to save and end
LOOK_SECONDS = 0.2


def _opened(path: Path) -> TextIO:
    """The file to lock. A link is not followed: what it leads to is nobody's lock. Raises UserError."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "r+")
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM):
            raise
        raise UserError(
            f"{path}: cannot be opened: {error.strerror}; remove it, and start the same call again"
        ) from None


def exclusive(work: Path, seconds: float | None = None) -> TextIO:
    """Hold the directory until the returned file is closed, or the process ends.

    Raises Busy where another process does not let go of it within so many seconds, by default `WAIT_SECONDS`. A file
    system without locks gets a warning.
    """
    waited_until = time.monotonic() + (WAIT_SECONDS if seconds is None else seconds)
    while True:
        work.mkdir(parents=True, exist_ok=True)  # its holder may have removed it
        stream = _opened(work / "lock")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            if time.monotonic() > waited_until:
                raise _busy(work) from None
            time.sleep(LOOK_SECONDS)
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            print(f"warning: {work}: this file system has no locks: train each run once at a time", file=sys.stderr)
            return stream
        if os.fstat(stream.fileno()).st_nlink:
            _sign(stream)
            return stream
        stream.close()  # the file was removed between its opening and its locking: another one may hold the new file


def wait_until_free(work: Path, seconds: float | None = None) -> None:
    """Return when no process holds the directory; at once where that cannot be seen.

    Raises Busy where one still does after so many seconds, by default `WAIT_SECONDS`.
    """
    waited_until = time.monotonic() + (WAIT_SECONDS if seconds is None else seconds)
    while held(work):
        if time.monotonic() > waited_until:
            raise _busy(work)
        time.sleep(LOOK_SECONDS)


def held(work: Path) -> bool:
    """Whether a process holds the directory just now. False where that cannot be seen."""
    return locked(work / "lock")


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


def _sign(stream: TextIO) -> None:
    """Write into the lock's file who holds it, for whoever is kept out."""
    job = os.environ.get("SLURM_JOB_ID")
    who = f"{f'Slurm job {job}' if job else f'process {os.getpid()}'} on {socket.gethostname()}"
    with suppress(OSError):  # a full disk: the lock holds without it
        os.ftruncate(stream.fileno(), 0)
        os.pwrite(stream.fileno(), who.encode(), 0)


def _busy(work: Path) -> Busy:
    who = ""
    with suppress(OSError, ValueError):
        who = (work / "lock").read_text(encoding="utf-8")[:200].strip()
    return Busy(
        f"{work}: another job already trains this run{f' ({who})' if who else ''}; wait for its end, or end that job"
    )
