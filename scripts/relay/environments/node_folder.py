"""Folders on a node's own disk that outlive a job: of one user, replaced while they are in use. Standard library only.

What others may be using is never changed: a folder's versions stand side by side (`name.<time in ns>`), and the link
`name` leads to the one to use now. Whoever uses a version holds it by a lock, which the kernel gives back.
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
    """The node's own disk from the site's text, such as `$SLURM_TMPDIR` or `/tmp`; its variables are read here.

    Raises UserError for a variable that is not set, and for a folder that is not there or not writable.
    """
    expanded = os.path.expandvars(text)
    unset = re.search(r"\$\{?(\w+)", expanded)
    where = f"node_disk: {text!r} on node {os.uname().nodename}"
    if unset:
        raise UserError(f"{where}: the variable {unset[1]} is not set there; name another folder in the site's file")
    disk = Path(expanded)
    if not disk.is_absolute() or not disk.is_dir():
        raise UserError(f"{where}: {expanded!r} is no folder there; name an absolute one, such as /tmp")
    if not os.access(disk, os.W_OK | os.X_OK):
        raise UserError(f"{where}: {expanded} is not writable; name another folder in the site's file")
    return disk


@contextlib.contextmanager
def in_one_line(path: Path) -> Iterator[None]:
    """A disk that is full, read-only or broken is no fault of the project: raises UserError for an OSError."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename or path} on node {os.uname().nodename}"
        remedy = "mend that, or name another folder as `node_disk` in the site's file"
        raise UserError(f"{where}: {error.strerror or error}; {remedy}") from None


def own_folder(disk: Path) -> Path:
    """This user's folder on the disk, made where it is missing. On a disk for all users, another's is never taken.

    Raises UserError where it cannot be made, or others can write to it.
    """
    folder = disk / f"relay-{os.getuid()}"
    with in_one_line(folder):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UserError(f"{folder} on node {os.uname().nodename} is not a folder that only you can write to: remove it")
    return folder


@contextlib.contextmanager
def only_one(link: Path) -> Iterator[int]:
    """Holds a lock that the kernel gives back when this process, and the installer that inherits it, have ended."""
    descriptor = os.open(f"{link}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"environment: another job on this node makes {link.name}; waiting", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def new_version(link: Path) -> Path:
    """A path for a new version, where nothing is yet."""
    return link.with_name(f"{link.name}.{time.time_ns()}")


def versions(link: Path) -> list[Path]:
    """All versions that are there, half-built ones as well."""
    return sorted(link.parent.glob(f"{link.name}.[0-9]*"))


def point(link: Path, version: Path) -> None:
    """Let the link lead to that version from now on, at no moment to none."""
    new = link.with_name(f"{link.name}.link")
    new.unlink(missing_ok=True)
    new.symlink_to(version.name)
    new.replace(link)


def use(link: Path) -> Path | None:
    """The version that the link leads to; None where there is none.

    It is held until this process ends, and what this process becomes (`exec`) has ended.
    """
    while True:
        try:
            version = link.resolve(strict=True)
            descriptor = os.open(version, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None
        os.set_inheritable(descriptor, True)
        with contextlib.suppress(OSError):  # a disk without locks: there, `clear` removes nothing
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if version.exists():  # else it was replaced and removed meanwhile
            return version
        os.close(descriptor)


def clear(link: Path, *, but: Path | None) -> None:
    """Remove the versions, `but` one, that nobody uses. For who holds `only_one`."""
    for version in versions(link):
        if but and version.name == but.name:
            continue
        descriptor = os.open(version, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(version, ignore_errors=True)
        except OSError:  # in use, or a disk without locks
            pass
        finally:
            os.close(descriptor)
