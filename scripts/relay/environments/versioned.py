"""Environments that outlive a job and can be replaced while other jobs use them.

A folder is never changed once others may use it. Its versions stand side by side, named `name.<time in ns>`, and the
link `name` points at the version to use now. A process that uses a version holds a lock on it, and the kernel releases
that lock when the process ends. Standard library only.
"""

import contextlib
import csv
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from relay.base.files import write_json

MARKER = "relay-environment.json"  # written last, so only a complete environment has it
PACKAGES = "lib/python3*/site-packages"


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
        _clear(link, but=link.resolve() if whole else None)
        if whole:
            return
        started, folder = time.monotonic(), new_version(link)
        try:
            install(folder, lock)
            packages = sorted(path.name for path in folder.glob(f"{PACKAGES}/*.dist-info"))
            write_json(folder / MARKER, {"stack": stack, "parts": list(parts), "packages": packages})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        point(link, folder)
        print(f"environment: {folder} made in {time.monotonic() - started:.1f} s", flush=True)


def is_whole(environment: Path) -> bool:
    """Whether the environment was completed and has every file of the packages that its marker names.

    Cleaners of /tmp delete files one by one, and so does a person who looks for room.
    """
    try:
        folder = next(environment.glob(PACKAGES))
        records = [(folder / name / "RECORD").read_text(encoding="utf-8") for name in _marked(environment)["packages"]]
    except (OSError, ValueError, KeyError, StopIteration):
        return False
    return (environment / "bin/python").exists() and all(_has_files(folder, record) for record in records)


def _marked(environment: Path) -> Mapping[str, Any]:
    """What the marker says. Raises OSError or ValueError where there is none."""
    marked: dict[str, Any] = json.loads((environment / MARKER).read_text(encoding="utf-8"))
    return marked


def _has_files(folder: Path, record: str) -> bool:
    """Whether all of a package's files exist with their recorded sizes. Files without a size (bytecode) do not count.

    `record` is the text of the package's RECORD file.
    """
    try:
        # Paths are plain text here, because pathlib would take a second for torch's 15,000 files.
        sized = [(f"{folder}/{path}", int(size)) for path, _, size in csv.reader(record.splitlines()) if size]
        return all(os.stat(path).st_size == size for path, size in sized)  # noqa: PTH116
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[int]:
    """Let one process at a time make what is to lie at `path`; yields the lock's descriptor.

    The kernel releases the lock when this process has ended and so has the installer that inherits the descriptor. On
    a disk without locks nobody is waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"environment: another process holds {path}.lock; waiting for it", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            print(f"environment: {path.parent}: no lock: {error.strerror}", flush=True)
        yield descriptor
    finally:
        os.close(descriptor)


def new_version(link: Path) -> Path:
    """An unused path for a new version."""
    return link.with_name(f"{link.name}.{time.time_ns()}")


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
            descriptor = os.open(version, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None
        os.set_inheritable(descriptor, True)
        with contextlib.suppress(OSError):  # this disk may have no locks; `_clear` then removes nothing
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if version.exists():  # another job may have replaced and removed it before it was locked
            return str(version / "bin" / "python") if (version / MARKER).exists() else None
        os.close(descriptor)


def _versions(link: Path) -> list[Path]:
    """All versions that exist, incomplete ones included."""
    return sorted(link.parent.glob(f"{link.name}.[0-9]*"))


def _clear(link: Path, *, but: Path | None) -> None:
    """Remove all versions that no process uses, except `but`. The caller must hold `only_one`."""
    for version in _versions(link):
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
