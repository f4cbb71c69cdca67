"""Whether a prepared dataset still has the bytes that its manifest names: looked at by every job before it reads them.

Reading all bytes of a large dataset takes minutes. So they are read once on each node and day. Between, a file counts
as unchanged while its size, its inode and its times are: also the time of the last change (ctime), which no program can
set. The stamp that keeps them lies in the user's folder on the node's own disk. Needs no numpy.
"""

import hashlib
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import errors_in_one_line, read_json_or, sha256, write_json
from relay.datasets import manifest
from relay.datasets.manifest import REMEDY, Manifest
from relay.environments.node_folder import own_folder

VALID_SECONDS = 24 * 3600.0
SETTLED_SECONDS = 2.0  # a file changed within the resolution of its times could be changed again unseen


def check(directory: Path) -> Manifest:
    """The manifest. Raises UserError where a file is missing or has other bytes than the manifest says."""
    listed, stamp = manifest.read(directory), _stamp(directory)
    expected = listed.checksums
    statuses = {name: _status(directory / name) for name in expected}
    now = time.time()
    last_look = read_json_or(stamp, None) if stamp else None
    if _holds(last_look, {"sha256": expected, "files": statuses}, now):
        return listed
    for name, expected_digest in expected.items():
        path = directory / name
        with errors_in_one_line(path, "cannot be read", REMEDY):
            digest = sha256(path)
        if digest != expected_digest:
            raise UserError(f"{path}: was changed: SHA-256 is {digest}, expected {expected_digest}; {REMEDY}")
    settled = all(now - changed_ns / 1e9 > SETTLED_SECONDS for *_, changed_ns in statuses.values())
    if stamp and settled and statuses == {name: _status(directory / name) for name in expected}:
        with suppress(OSError):  # no room for it: the next job reads the bytes again
            write_json(stamp, {"time": now, "sha256": expected, "files": statuses})
    return listed


def _holds(last_look: Any, files_now: dict[str, Any], now: float) -> bool:
    """Whether a stamp is young enough, and of these files as they are now."""
    try:
        age = now - last_look["time"]
        return 0 <= age < VALID_SECONDS and all(last_look[key] == value for key, value in files_now.items())
    except (TypeError, KeyError):
        return False


def _status(path: Path) -> list[int]:
    """What changes when a file's bytes do: size, inode, and both times in nanoseconds. Raises UserError."""
    with errors_in_one_line(path, "cannot be read", REMEDY):
        status = path.stat()
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _stamp(directory: Path) -> Path | None:
    """Where this node keeps what it knows of the folder; None where no folder is safe from others."""
    try:
        own = own_folder(Path(tempfile.gettempdir()))
    except UserError:
        return None
    name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
    return own / "verified" / f"{name}.json"
