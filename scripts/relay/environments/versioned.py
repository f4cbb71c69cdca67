"""Environments that outlive a job and can be replaced while other jobs use them.

A folder is never changed once others may use it. Its versions stand side by side, named `name.<time in ns>`, and the
link `name` points at the version to use now. A process that uses a version holds a shared lock on a file in it, and the
kernel releases that lock when the process ends. NFS tells other machines of a file's lock, and not of a folder's.
Standard library only.
"""

import contextlib
import csv
import fcntl
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from relay.base.files import write_json
from relay.chain import files

MARKER = "relay-environment.json"  # written last, so only a complete environment has it


def have(link: Path, install: Callable[[Path, int], None], *, stack: str, parts: Sequence[str] = ()) -> None:
    """Make a stack's environment by `install(folder, lock)`, unless a complete one with these optional parts is there.

    Jobs on one node wait for each other: the installers inherit the descriptor `lock`. An incomplete environment is
    replaced by a new one in a folder beside it, so that a job that still runs from the old one keeps its files. What
    cannot be completed is removed.
    """
    with only_one(link) as lock:
        if whole := is_whole(link) and set(parts) <= set(_marked(link).get("parts", ())):
            print(f"environment: {link.resolve()} is there", flush=True)
        elif link.is_symlink() or _versions(link):
            print(f"environment: {link} is incomplete; it is installed again", flush=True)
        clear(link, but=link.resolve() if whole else None)
        if whole:
            return
        started, folder = time.monotonic(), next_version(link)
        try:
            install(folder, lock)
            packages = sorted(path.name for path in site_packages(folder).glob("*.dist-info"))
            (folder / files.LOCK).touch()
            write_json(folder / MARKER, {"stack": stack, "parts": list(parts), "packages": packages})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        point(link, folder)
        print(f"environment: {folder} made in {time.monotonic() - started:.1f} s", flush=True)


def is_whole(environment: Path) -> bool:
    """Whether the environment was completed, and no files seem to be gone of the packages that its marker names."""
    try:
        return has_packages(environment, _marked(environment)["packages"])
    except (OSError, ValueError, KeyError):
        return False


def _marked(environment: Path) -> Mapping[str, Any]:
    """What the marker says. Raises OSError or ValueError where there is none."""
    marked: dict[str, Any] = json.loads((environment / MARKER).read_text(encoding="utf-8"))
    return marked


def has_packages(environment: Path, names: Collection[str]) -> bool:
    """Whether a virtual environment has its Python, and these packages (`NAME-VERSION.dist-info`) seem to be whole.

    Cleaners of scratch disks and of /tmp delete old files one by one, and a person who looks for room the large ones.
    To look for all files of torch's stack takes a cold network disk half a minute.
    """
    own, folder = (environment / "bin/python", environment / "pyvenv.cfg"), site_packages(environment)
    return all(path.exists() for path in own) and all(_seems_whole(folder, name) for name in names)


def site_packages(environment: Path) -> Path:
    """The folder of an environment's own packages, where it has one."""
    return next(environment.glob("lib/python3*/site-packages"), environment / "lib")


def _seems_whole(folder: Path, package: str) -> bool:
    """Whether a tenth of the files exist that a package's RECORD names, a user's edits included.

    These are its largest file, and all at most one folder deep: its first modules, and what pip has noted of it, which
    no import reads, so that it looks old first. Bytecode, which has no size in RECORD, does not count.
    """
    try:
        record = (folder / package / "RECORD").read_text(encoding="utf-8").splitlines()
        sized = sorted((int(size), path) for path, _, size in csv.reader(record) if size)
    except (OSError, ValueError):
        return False
    looked_for = [path for _, path in sized[:-1] if path.count("/") < 2] + [path for _, path in sized[-1:]]
    return all((folder / path).exists() for path in looked_for)


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[int]:
    """Let one process at a time make what is to lie at `path`; yields the lock's descriptor.

    The kernel releases the lock when this process has ended and so has the installer that inherits the descriptor. On
    a disk without locks nobody is waited for. Raises OSError.
    """
    place = path.with_name(f"{path.name}.held")
    try:
        stream, locks = files.exclusive(place, 0)
    except files.HeldError as held:
        who = f" ({held})" if str(held) else ""
        line = f"environment: another process{who} is at work on {path}; waiting for its end; {files.if_dead(place)}"
        print(line, file=sys.stderr, flush=True)
        stream, locks = files.exclusive(place, math.inf)
    with stream:
        if not locks:
            line = f"warning: {path.parent}: this file system has no locks: start one such call at a time"
            print(line, file=sys.stderr, flush=True)
        yield stream.fileno()


def point(link: Path, version: Path) -> None:
    """Point the link at a version. The link is replaced in one step, so that it always points at some version."""
    new = link.with_name(f".{link.name}.{token_hex(4)}")  # where there are no locks, others may be at it
    new.symlink_to(version.name)
    new.replace(link)


def interpreter(link: Path) -> str | None:
    """The Python of the version that the link points at; None where none is complete.

    The version's lock is held until this process ends, also after `exec`.
    """
    while True:
        try:
            version = link.resolve(strict=True)
        except OSError:
            return None
        with contextlib.suppress(OSError):  # this disk may have no locks; `clear` then removes nothing
            # A shared lock needs no right to write: on some clusters the nodes can only read the home folders.
            descriptor = os.open(version / files.LOCK, os.O_RDONLY | os.O_CREAT, 0o600)
            os.set_inheritable(descriptor, True)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if version.exists():  # another job may have replaced and removed it before it was locked
            return str(version / "bin" / "python") if (version / MARKER).exists() else None


def next_version(link: Path) -> Path:
    """Where a new version is to be made."""
    return link.with_name(f"{link.name}.{time.time_ns()}")


def _versions(link: Path) -> list[Path]:
    """All versions that exist, incomplete ones included."""
    return sorted(link.parent.glob(f"{link.name}.[0-9]*"))


def clear(link: Path, *, but: Path | None) -> None:
    """Remove all versions that no process uses, except `but`. The caller must hold `only_one`."""
    for version in _versions(link):
        if but and version.name == but.name:
            continue
        with contextlib.suppress(OSError, files.HeldError):
            stream, locks = files.exclusive(version, 0)
            with stream:
                if locks:
                    (version / MARKER).unlink(missing_ok=True)  # first: `interpreter` may lock a new file of that name
                    shutil.rmtree(version, ignore_errors=True)
            if locks:  # NFS keeps a folder while a file in it is open
                shutil.rmtree(version, ignore_errors=True)
