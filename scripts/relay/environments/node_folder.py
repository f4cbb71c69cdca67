"""A node's own disk, and this user's folder on it. Standard library only."""

from __future__ import annotations

import os
import re
import stat
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import errors_in_one_line

HERE = f"on node {os.uname().nodename}"


def node_disk(text: str) -> Path:
    """The folder on the node's own disk. `text` is the site's, such as `$SLURM_TMPDIR` or `/tmp`.

    Variables are expanded on this node. Raises UserError for a variable that is not set, and for a folder that is
    missing, not absolute or not writable.
    """
    expanded = os.path.expandvars(text)
    unset = re.search(r"\$\{?(\w+)", expanded)
    where = f"node_disk: {text!r} {HERE}"
    if unset:
        raise UserError(f"{where}: the variable {unset[1]} is not set there; name another folder in the site's file")
    disk = Path(expanded)
    if not disk.is_absolute() or not disk.is_dir():
        raise UserError(f"{where}: {expanded!r} is not an absolute folder there; name one, such as /tmp")
    if not os.access(disk, os.W_OK | os.X_OK):
        raise UserError(f"{where}: {expanded} is not writable; name another folder in the site's file")
    return disk


def noexec(folder: Path) -> bool:
    """Whether nothing in this folder can be run, nor a library there be loaded: its disk is mounted so."""
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def in_one_line(path: Path) -> AbstractContextManager[None]:
    """Raise UserError for an OSError: the user, not this project, can mend a full, read-only or broken disk."""
    remedy = "free or repair the disk, or name another folder as `node_disk` in the site's file"
    return errors_in_one_line(path, f"cannot be used {HERE}", remedy)


def own_folder(disk: Path) -> Path:
    """This user's folder on a disk that all users may share; it is created where it is missing.

    Raises UserError where it cannot be created, belongs to another user, or others can write to it.
    """
    folder = disk / f"relay-{os.getuid()}"
    with in_one_line(folder):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        yours = status.st_uid == os.getuid()
        remedy = "remove it" if yours else "another user made it: name another folder as `node_disk` in the site's file"
        raise UserError(f"{folder} {HERE} is not a folder that only you can write to: {remedy}")
    return folder
