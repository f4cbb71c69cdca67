"""Folders on a node's own disk that outlive a job and can be replaced while other jobs use them.

A folder is never changed once others may use it. Its versions stand side by side, named `name.<time in ns>`, and the
link `name` points at the version to use now. A process that uses a version holds a lock on it, and the kernel releases
that lock when the process ends. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from relay.base.errors import UserError


def node_disk(text: str) -> Path:
    """The folder on the node's own disk. `text` is the site's, such as `$SLURM_TMPDIR` or `/tmp`.

    Variables are expanded on this node. Raises UserError for a variable that is not set, and for a folder that is
    missing, not absolute or not writable.
    """
    expanded = os.path.expandvars(text)
    unset = re.search(r"\$\{?(\w+)", expanded)
    where = f"node_disk: {text!r} on node {os.uname().nodename}"
    if unset:
        raise UserError(f"{where}: the variable {unset[1]} is not set there; name another folder in the site's file")
    disk = Path(expanded)
    if not disk.is_absolute() or not disk.is_dir():
        raise UserError(f"{where}: {expanded!r} is not an absolute folder there; name one, such as /tmp")
    if not os.access(disk, os.W_OK | os.X_OK):
        raise UserError(f"{where}: {expanded} is not writable; name another folder in the site's file")
    return disk


@contextlib.contextmanager
def in_one_line(path: Path) -> Iterator[None]:
    """Raise UserError for an OSError: the user, not this project, can mend a full, read-only or broken disk."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename or path} on node {os.uname().nodename}"
        remedy = "free or repair the disk, or name another folder as `node_disk` in the site's file"
        raise UserError(f"{where}: {error.strerror or error}; {remedy}") from None


def own_folder(disk: Path) -> Path:
    """This user's folder on a disk that all users may share; it is created where it is missing.

    Raises UserError where it cannot be created, belongs to another user, or others can write to it.
    """
    folder = disk / f"relay-{os.getuid()}"
    with in_one_line(folder):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        yours = status.st_uid == os.getuid()
        remedy = "remove it" if yours else "another user made it: name another folder as `node_disk` in the site's file"
        raise UserError(f"{folder} on node {os.uname().nodename} is not a folder that only you can write to: {remedy}")
    return folder


@contextlib.contextmanager
def only_one(link: Path) -> Iterator[int]:
    """Let one process on this node work on `link` at a time; yields the lock's descriptor.

    The kernel releases the lock when this process has ended and so has the installer that inherits the descriptor.
    """
    descriptor = os.open(f"{link}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"environment: another job on this node is installing {link.name}; waiting for it", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:  # a disk without locks: nobody is waited for
            print(f"environment: {link.parent}: no lock: {error.strerror}", flush=True)
        yield descriptor
    finally:
        os.close(descriptor)


def new_version(link: Path) -> Path:
    """An unused path for a new version."""
    return link.with_name(f"{link.name}.{time.time_ns()}")


def versions(link: Path) -> list[Path]:
    """All versions that exist, incomplete ones included."""
    return sorted(link.parent.glob(f"{link.name}.[0-9]*"))


def point(link: Path, version: Path) -> None:
    """Point the link at a version. The link is replaced in one step, so that it always points at some version."""
    new = link.with_name(f"{link.name}.link")
    new.unlink(missing_ok=True)
    new.symlink_to(version.name)
    new.replace(link)


def use(link: Path) -> Path | None:
    """The version that the link points at, or None.

    Its lock is held until this process ends, also after `exec`.
    """
    while True:
        try:
            version = link.resolve(strict=True)
            descriptor = os.open(version, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None
        os.set_inheritable(descriptor, True)
        with contextlib.suppress(OSError):  # this disk may have no locks; `clear` then removes nothing
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if version.exists():  # another job may have replaced and removed it before it was locked
            return version
        os.close(descriptor)


def clear(link: Path, *, but: Path | None) -> None:
    """Remove all versions that no process uses, except `but`. The caller must hold `only_one`."""
    for version in versions(link):
        if but and version.name == but.name:
            continue
        descriptor = os.open(version, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(version, ignore_errors=True)
        except OSError:  # another process uses it, or this disk has no locks
            pass
        finally:
            os.close(descriptor)
