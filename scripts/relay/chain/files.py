"""Files that are complete or absent, also after a crash of the machine. Needs no torch."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

# A file system without locks says one of these. The last one is Linux's ENOTSUPP, which Python does not name.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EREMOTEIO, 524)
_NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES, errno.ENOSYS, 524)  # of a folder: CIFS, FUSE


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
    path = folder / f".room-{os.getpid()}"
    try:
        with path.open("wb") as stream:
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
