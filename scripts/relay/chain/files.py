"""Files that are complete or absent, also after a crash of the machine; and one process at a time in a folder.

The lock is the kernel's, and ends with the process that holds it. Needs no torch.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
import weakref
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, TextIO

# A file system without locks says one of these. The last one is Linux's ENOTSUPP, which Python does not name.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EREMOTEIO, 524)
_NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES, errno.ENOSYS, 524)  # of a folder: CIFS, FUSE
LOCK = "lock"
WAIT_SECONDS = 60.0  # the processes of a killed job may need as long to save and end
LOOK_SECONDS = 0.2
LONGEST_LOOK_SECONDS = 5.0


def write_json(path: Path, value: Any) -> None:
    """Write JSON, as `write_bytes` does. Raises OSError."""
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place, make it durable, and rename it there: a reader sees all of it or none.

    Raises OSError, and leaves nothing of what could not be written.
    """
    temporary = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with temporary.open("xb") as stream:  # another user's link of that name would not be followed
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def disk_refusal(folder: Path, size_bytes: int = 2**20) -> OSError | None:
    """What the folder's disk says to a file of this size; None where it takes it, and nothing is left of it then."""
    path = folder / f".room-{os.getpid()}-{token_hex(4)}"
    try:
        with path.open("xb") as stream:  # not through a link that another user has laid there
            stream.write(bytes(size_bytes))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            path.unlink()
    return None


def sync(path: Path) -> None:
    """Make a file's content durable, or the names within a folder, where its file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def described(path: Path) -> dict[str, Any]:
    """A file's size in bytes, and its SHA-256 in hex. Raises OSError."""
    with path.open("rb") as stream:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def all_described(place: Path) -> dict[str, Any]:
    """The same of each file below a folder, by its path there."""
    return {str(path.relative_to(place)): described(path) for path in sorted(place.rglob("*")) if path.is_file()}


def remove(path: Path, *, surely: bool = False) -> None:
    """Remove a file, a link, or a folder with its content; what another process has removed is fine.

    Raises OSError for a file or a link that stays; `surely`: for a folder, too.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=not surely)
    else:
        path.unlink(missing_ok=True)


class HeldError(Exception):
    """Another process holds the folder. As text: who that is; '' where nobody knows."""


def exclusive(folder: Path, seconds: float | None = None) -> tuple[TextIO, bool]:
    """Hold the folder until the returned file is closed, or the process ends; and whether its file system has locks.

    Without locks, nobody is kept out. Raises HeldError where another process does not let go of it within so many
    seconds, by default `WAIT_SECONDS`, and OSError.
    """
    waited_until = time.monotonic() + (WAIT_SECONDS if seconds is None else seconds)
    pause = LOOK_SECONDS
    while True:
        folder.mkdir(parents=True, exist_ok=True)  # its holder may have removed it
        # A link is not followed: what it leads to is nobody's lock.
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        stream = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            if time.monotonic() > waited_until:
                raise HeldError(holder(folder)) from None
            time.sleep(pause)
            pause = min(1.2 * pause, LONGEST_LOOK_SECONDS)  # hundreds of nodes may wait at one file server
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return stream, False
        if os.fstat(stream.fileno()).st_nlink:
            _sign(stream)
            _keep_from_forks(weakref.ref(stream))
            return stream, True
        stream.close()  # the file was removed between its opening and its locking: another one may hold the new file


def if_dead(folder: Path) -> str:
    """What to do where a holder's node has died for good: an NFS server may keep its lock until that node is back."""
    return f"if its node is dead and stays so, delete {folder / LOCK}"


def _keep_from_forks(held: weakref.ref[TextIO]) -> None:
    """A process that this one forks may outlive it, and must keep nobody out."""
    os.register_at_fork(after_in_child=lambda: (stream := held()) and stream.close())


def holder(folder: Path) -> str:
    """Who holds the folder, as that process has written into its lock; '' where that is not known."""
    with suppress(OSError, ValueError):
        return (folder / LOCK).read_text(encoding="utf-8")[:200].strip()
    return ""


def _sign(stream: TextIO) -> None:
    job = os.environ.get("SLURM_JOB_ID")
    who = f"{f'Slurm job {job}' if job else f'process {os.getpid()}'} on {socket.gethostname()}"
    with suppress(OSError):  # a full disk: the lock holds without it
        os.ftruncate(stream.fileno(), 0)
        os.pwrite(stream.fileno(), who.encode(), 0)
