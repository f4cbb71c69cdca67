"""Whether a prepared dataset still has the bytes that its manifest names: looked at by every job before it reads them.

Reading all bytes of a large dataset takes minutes. So they are read once on each node and day. Between, a file counts
as unchanged while its size, its inode and its times are: also the time of the last change (ctime), which no program can
set. The stamp that keeps them lies in the user's folder on the node's own disk. Needs no numpy.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json_or, sha256, write_json
from relay.datasets import manifest
from relay.datasets.manifest import REMEDY, Manifest
from relay.environments.node_folder import own_folder

VALID_SECONDS = 24 * 3600.0
SETTLED_SECONDS = 2.0  # a file changed within the resolution of its times could be changed again unseen


def check(directory: Path) -> Manifest:
    """The manifest. Raises UserError where a file is missing or has other bytes than the manifest says."""
    found = manifest.read(directory)
    _compare(directory, {name: record.sha256 for name, record in found.files.items()})
    return found


def _compare(directory: Path, expected: dict[str, str]) -> None:
    stamp = _stamp(directory)
    seen = {name: _status(directory / name) for name in expected}
    now = time.time()
    known = read_json_or(stamp, None) if stamp else None
    if _holds(known, {"sha256": expected, "files": seen}, now):
        return
    for name, digest in expected.items():
        with _readable(directory / name) as path:
            found = sha256(path)
        if found != digest:
            raise UserError(f"{directory / name}: was changed: SHA-256 is {found}, expected {digest}; {REMEDY}")
    settled = all(now - changed_ns / 1e9 > SETTLED_SECONDS for *_, changed_ns in seen.values())
    if stamp and settled and seen == {name: _status(directory / name) for name in expected}:
        with suppress(OSError):  # no room for it: the next job reads the bytes again
            write_json(stamp, {"time": now, "sha256": expected, "files": seen})


def _holds(known: Any, seen: dict[str, Any], now: float) -> bool:
    """Whether a stamp is young enough, and of these files as they are now."""
    try:
        age = now - known["time"]
        return 0 <= age < VALID_SECONDS and all(known[key] == value for key, value in seen.items())
    except (TypeError, KeyError):
        return False


def _status(path: Path) -> list[int]:
    """What changes when a file's bytes do: size, inode, and both times in nanoseconds. Raises UserError."""
    with _readable(path):
        found = path.stat()
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """Raises UserError, which names the file, where its disk fails."""
    try:
        yield path
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}; {REMEDY}") from None


def _stamp(directory: Path) -> Path | None:
    """Where this node keeps what it knows of the folder; None where no folder is safe from others."""
    try:
        own = own_folder(Path(tempfile.gettempdir()))
    except UserError:
        return None
    name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
    return own / "verified" / f"{name}.json"
