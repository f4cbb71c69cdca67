"""The exclusive right to work on a folder's results: one driver at a time."""

import atexit
import fcntl
import os
import re
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from relay.base.errors import UserError
from relay.base.lock import locked
from relay.chain.files import NO_LOCKS

LOCK = Path(".snakemake/relay-driver.lock")
MOMENT_SECONDS = 1.0


def say(line: str) -> None:
    """Print a line of the driver's own, at once."""
    with suppress(OSError):  # a terminal that was closed
        print(f"{line}\n", end="", file=sys.stderr, flush=True)  # at one stroke: other threads print, too


@dataclass
class Claim:
    """The exclusive right to work on a folder's results, for as long as this process lives.

    `left_by` tells of a driver before it that did not end by itself; '' if there was none. `locked` is False where the
    file system has no locks.
    """

    stream: TextIO
    left_by: str
    locked: bool = True

    def release(self) -> None:
        """Tell the next one that this driver ended by itself. The kernel gives the lock back, whatever happens."""
        if not self.stream.closed:
            self.stream.truncate(0)
            self.stream.close()


def claim(folder: Path) -> Claim:
    """Become the folder's only driver. Raises UserError if there is one, or where nothing can be written.

    Programs started by this process do not inherit the lock (Python opens files close-on-exec), so that a daemon
    among them cannot outlive the driver with it.
    """
    path = folder / LOCK
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        # A link is not followed: the file that it leads to would be emptied.
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        stream = os.fdopen(descriptor, "a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; use a folder of your own") from None
    locked = True
    try:
        _lock(stream)
    except BlockingIOError:
        raise _another(folder, stream) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise UserError(f"{path}: cannot be locked: {error.strerror}") from None
        locked = False
        if _lives_here(stream):
            raise _another(folder, stream) from None
        say(f"warning: {path}: this file system has no locks ({error.strerror}): start no second driver here")
    held = Claim(stream, _holder(stream), locked)
    stream.truncate(0)
    stream.write(f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    stream.flush()
    # After the end of Snakemake's threads: local rules write results until then.
    atexit.register(held.release)
    return held


def _lock(stream: TextIO) -> None:
    """Lock it. Raises OSError; BlockingIOError where another one still holds it after a moment, as no `status` does."""
    deadline = time.monotonic() + MOMENT_SECONDS
    while True:
        try:
            return fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(MOMENT_SECONDS / 10)


def working(folder: Path) -> str:
    """The driver that works on a folder's results, as it names itself; '' where there is none."""
    if not locked(folder / LOCK):
        return ""
    with (folder / LOCK).open(encoding="utf-8", errors="replace") as stream:
        return _holder(stream) or "one that just started"


def _another(folder: Path, stream: TextIO) -> UserError:
    who = _holder(stream) or "one that just started"
    remedy = "`snakemake status` shows how far it is; wait for its end or end it"
    return UserError(f"{folder}: another driver ({who}) works on these results; {remedy}")


def _lives_here(stream: TextIO) -> bool:
    """Whether another driver that a file names runs on this machine. Of another machine's, nothing can be seen."""
    named = re.match(r"pid (\d+) on (\S+) since ", _holder(stream))
    if named is None or named[2] != socket.gethostname() or int(named[1]) == os.getpid():  # which has begun anew
        return False
    try:  # it was there when it wrote the file; a later process may have got its number
        return psutil.Process(int(named[1])).create_time() <= os.fstat(stream.fileno()).st_mtime
    except psutil.Error:
        return False


def _holder(stream: TextIO) -> str:
    stream.seek(0)
    return " ".join(stream.read(200).split())
