"""One process at a time in a folder: the lock is the kernel's, and ends with the process that holds it."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from .files import NO_LOCKS

NAME = "lock"
WAIT_SECONDS = 60.0  # the processes of a killed job may need as long to save and end
LOOK_SECONDS = 0.2


class HeldError(Exception):
    """Another process holds the folder. As text: who that is; '' where nobody knows."""


def exclusive(folder: Path, seconds: float | None = None) -> tuple[TextIO, bool]:
    """Hold the folder until the returned file is closed, or the process ends; and whether its file system has locks.

    Without locks, nobody is kept out. Raises HeldError where another process does not let go of it within so many
    seconds, by default `WAIT_SECONDS`, and OSError.
    """
    waited_until = time.monotonic() + (WAIT_SECONDS if seconds is None else seconds)
    while True:
        folder.mkdir(parents=True, exist_ok=True)  # its holder may have removed it
        # A link is not followed: what it leads to is nobody's lock.
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        stream = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            if time.monotonic() > waited_until:
                raise HeldError(holder(folder)) from None
            time.sleep(LOOK_SECONDS)
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return stream, False
        if os.fstat(stream.fileno()).st_nlink:
            _sign(stream)
            return stream, True
        stream.close()  # the file was removed between its opening and its locking: another one may hold the new file


def holder(folder: Path) -> str:
    """Who holds the folder, as that process has written into its lock; '' where that is not known."""
    with suppress(OSError, ValueError):
        return (folder / NAME).read_text(encoding="utf-8")[:200].strip()
    return ""


def _sign(stream: TextIO) -> None:
    job = os.environ.get("SLURM_JOB_ID")
    who = f"{f'Slurm job {job}' if job else f'process {os.getpid()}'} on {socket.gethostname()}"
    with suppress(OSError):  # a full disk: the lock holds without it
        os.ftruncate(stream.fileno(), 0)
        os.pwrite(stream.fileno(), who.encode(), 0)
