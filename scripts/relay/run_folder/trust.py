"""Whether what is about to be loaded, or run, can only have been written by its user. Needs no torch.

torch reads parts of a checkpoint with pickle, which can run code: whoever can write it can act as the one who loads it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from relay.base.errors import UserError
from relay.chain.writers import EVERYONE, others, user
from relay.spec.setting import Writers

REPLACE = "who could replace there what jobs run or load"
LEVELS = 3  # results/checkpoints/RUN: the run's own folder, and those above it that are the project's
# What jobs run, or are told to run: its folders down to this depth.
OF_JOBS = {"code": 1, "equivalence": 2, "locks": 0, "runs": 1, "wheelhouses": 1}


def untrusted(place: Path, writers: Writers) -> str | None:
    """Why nothing of a checkpoint's folder may be read, in one line; None where it is the user's own.

    Links, other users' files and what `writers` excludes are refused. Access lists count as far as a file's mode shows
    them: those of POSIX do, those of NFSv4 do not.
    """
    for path in (place, *_inside(place)):
        try:
            status = path.lstat()
        except FileNotFoundError:  # such as bytecode that Python has just renamed
            continue
        if stat.S_ISLNK(status.st_mode):
            return f"{path} is a symbolic link; a checkpoint has only files and folders of its own"
        if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
            return f"{path} is neither a file nor a folder"
        if status.st_uid != os.getuid():
            return f"{path} belongs to another user ({user(status.st_uid)})"
        if who := _others(status, writers):
            return f"{path} can be written by {who}: chmod -R g-w,o-w {place}"
    return None


def unsafe_above(work: Path, writers: Writers) -> str | None:
    """Why no checkpoint in a run's folder `work` can be trusted: another user could put one there. None where none can.

    The folder, `results/checkpoints`, `results` and all above them are looked at, also where links lead to. A sticky
    folder is fine: nobody can replace there what is not theirs.
    """
    paths = {work.absolute(), work.resolve()}
    own = {place for path in paths for place in (path, *path.parents)[:LEVELS]}
    every = {place for path in paths for place in (path, *path.parents) if place.exists()}
    found = (_unsafe(folder, writers, folder in own) for folder in sorted(every, reverse=True))
    return next(filter(None, found), None)


def _unsafe(folder: Path, writers: Writers, own: bool = True) -> str | None:
    """Why another user could replace what is in a folder.

    One that is not the project's `own` may belong to anybody, such as a group's head: who gave the place is trusted.
    """
    status = folder.stat()
    theirs = status.st_uid not in (os.getuid(), 0)
    if theirs and own:
        return f"{folder} belongs to another user ({user(status.st_uid)}), {REPLACE}"
    if status.st_mode & stat.S_ISVTX or not (who := _others(status, writers)):
        return None
    mend = [f"chmod g-w,o-w {folder}"] if status.st_uid == os.getuid() else []
    mend += [] if own else ["work in a folder of your own"]
    allowed = EVERYONE if who == EVERYONE else "group"
    mend.append(f"write `checkpoint_writers: {allowed}` into the config, if you trust them")
    return f"{folder} can be written by {who}, {REPLACE}: {', or '.join(mend)}"


def make_all_own(results: Path, writers: Writers, sources: Sequence[Path] = ()) -> None:
    """Make the folders of what jobs run. Raises UserError where another user could put something into one.

    Or could change one of the `sources`, files and folders that are the program. Whose they are does not matter.
    """
    state = results.parent / ".snakemake"  # with environments
    program = [path for source in sources for path in (source, *(_inside(source) if source.is_dir() else ()))]
    if writers == "owner":
        os.umask(os.umask(0o077) | 0o022)  # for all that this process and its jobs make
        for place in (state, *(path for path in program if path.name == "__pycache__")):  # made before, by this process
            if place.is_dir() and place.stat().st_mode & 0o022:
                keep_to_owner(place)
    for path in program:
        with suppress(FileNotFoundError):  # such as bytecode that Python has just renamed
            if not path.is_symlink() and (who := _others(path.stat(), writers)):
                mend = f"chmod -R g-w,o-w {' '.join(map(str, sources))}"
                raise UserError(f"{path} can be written by {who}, who could change what you and jobs run: {mend}")
    folders = [state] if state.is_dir() else []
    for name, depth in OF_JOBS.items():
        make_own(results / name)
        if problem := unsafe_above(results / name / "any", writers):
            raise UserError(problem)
        folders += (folder for level in range(1, depth + 1) for folder in (results / name).glob("*/" * level))
    if problem := next(filter(None, (_unsafe(folder, writers) for folder in folders)), None):
        raise UserError(problem)


def keep_to_owner(place: Path) -> None:
    """Take the right to write from everyone but the owner, whatever the umask gave, where the file system can."""
    with suppress(OSError):
        for path in (place, *_inside(place)):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & 0o022 and not path.is_symlink():
                path.chmod(mode & ~0o022)


def make_own(folder: Path) -> None:
    """Make a folder, and those above it that are missing, into which only the owner can write."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o755, exist_ok=True)


def _inside(place: Path) -> Iterator[Path]:
    """All that lies in a folder, links not followed. Raises OSError where it cannot be listed."""

    def refuse(error: OSError) -> None:
        raise error

    if place.is_symlink():
        return
    for folder, names, files in os.walk(place, onerror=refuse):
        yield from (Path(folder, name) for name in (*names, *files))


def _others(status: os.stat_result, writers: Writers) -> str:
    """Who can write beside the owner, though they should not be able to; '' where nobody can."""
    who = others(status)
    return "" if writers == EVERYONE or (writers == "group" and who != EVERYONE) else who
