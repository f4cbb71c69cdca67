"""A node's own disk, and this user's folder on it. Standard library only."""

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

    Raises UserError for a folder that cannot be used.
    """
    disk, problem = looked_at(text)
    if problem:
        raise UserError(f"node_disk: {text!r} {HERE}: {problem}; name another folder in the site's file, such as /tmp")
    return disk


def looked_at(text: str) -> tuple[Path, str]:
    """The folder on this node, with its variables expanded; and why it cannot be used, '' where it can."""
    disk = Path(expanded := os.path.expandvars(text))
    if unset := re.search(r"\$\{?(\w+)", expanded):
        return disk, f"the variable {unset[1]} is not set there"
    if not disk.is_absolute() or not disk.is_dir():
        return disk, f"{expanded!r} is not an absolute folder there"
    return disk, "" if os.access(disk, os.W_OK | os.X_OK) else f"{expanded} is not writable"


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
