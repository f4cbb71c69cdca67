"""Who beside its user could write to a file or a folder. Needs no torch.

torch's sharded checkpoints are read with pickle, which can run code: whoever writes one acts as its reader. What
everybody or another user could have written is refused. Of a group's right to write, which an open umask or a mount
gives, a warning tells. Access lists count as far as a file's mode shows them: those of POSIX do, those of NFSv4 do not.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .telling import say


def unsafe(path: Path, *, folder: bool) -> str | None:
    """Why nothing of a checkpoint may be read, in one line; None where that may be.

    `folder`: the chain's folder, which may be a link, or a colleague's. All else is the checkpoint's own.
    """
    seen = path.stat() if folder else path.lstat()
    if stat.S_ISLNK(seen.st_mode):
        return f"{path} is a link"
    if not folder and _is_anothers(seen):
        return f"{path} belongs to another user ({user(seen.st_uid)}); remove it, or give a folder on another disk"
    if seen.st_mode & stat.S_IWOTH and not _is_sticky(seen):
        return f"{path} can be written by everyone; chmod o-w it, or give a folder on another disk"
    return None


def _is_anothers(seen: os.stat_result) -> bool:
    return seen.st_uid not in (os.geteuid(), 0)


def _is_sticky(seen: os.stat_result) -> bool:
    """Whether nobody can replace there what is not theirs, as in /tmp. Of a file the bit says nothing."""
    return stat.S_ISDIR(seen.st_mode) and bool(seen.st_mode & stat.S_ISVTX)


def unsafe_within(place: Path) -> str | None:
    """The same of a folder of the user's own, and of all that is in it."""
    for path in (place, *place.rglob("*")):
        with suppress(FileNotFoundError):  # such as bytecode that Python has just renamed
            if problem := unsafe(path, folder=False):
                return problem
    return None


def unsafe_above(folder: Path, own: int = 0) -> str | None:
    """The same of a folder and all above it, also where links lead: who can write there could replace what is in it.

    The folder itself and those above it, `own` of them, have to be the user's. The others may be anybody's, such as a
    group's head: who gave the place is trusted.
    """
    mine = {place for path in (folder.absolute(), folder.resolve()) for place in (path, *path.parents)[:own]}
    for place in above(folder):
        if problem := unsafe(place, folder=True):
            return problem
        if place in mine and _is_anothers(seen := place.stat()):
            return f"{place} belongs to another user ({user(seen.st_uid)}); work in a folder of your own"
    return None


def above(folder: Path) -> list[Path]:
    """A folder and all above it that are there, also where links lead; what lies deepest first."""
    paths = (folder.absolute(), folder.resolve())
    return sorted({place for path in paths for place in (path, *path.parents) if place.exists()}, reverse=True)


def tell(folder: Path, place: Path | None = None) -> None:
    """Warn, once, where others could write to the chain's folder, or else to a checkpoint in it. Raises OSError."""
    if place and _who(folder, owners=True):
        return  # that was told
    if line := warning([place, *sorted(place.rglob("*"))] if place else [folder], folder, owners=True):
        say(line)


def warning(paths: Iterable[Path], mend: Path, *, owners: bool) -> str | None:
    """What to say of the first of these paths to which others could write; None where nobody could. Raises OSError.

    `mend` is the folder to close, where the path is in it. Without `owners`, whoever owns a path is trusted.
    """
    remedies = {True: f"chmod -R g-w,o-w {mend}", False: "work in a folder of your own"}
    for path in paths:
        with suppress(FileNotFoundError):
            if who := _who(path, owners=owners):
                remedy = remedies[path.is_relative_to(mend)]
                return f"warning: {path} can be written by {who}, who could act as you; {remedy}, or trust them"
    return None


def make_own(folder: Path) -> None:
    """Make a folder, and those above it that are missing, into which only the owner can write."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o755, exist_ok=True)


def keep_to_owner(place: Path) -> None:
    """Take the right to write from everyone but the owner, whatever the umask gave, where the file system can."""
    with suppress(OSError):
        for path in (place, *place.rglob("*")):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & 0o022 and not path.is_symlink():
                path.chmod(mode & ~0o022)


def _who(path: Path, *, owners: bool) -> str:
    """Who could write to it beside its user; '' where nobody can.

    A group of the user's own, with no other member, counts for nobody. Systems with such groups let them write.
    """
    seen = path.stat()
    if owners and _is_anothers(seen):
        return f"its owner ({user(seen.st_uid)})"
    if _is_sticky(seen):
        return ""
    if seen.st_mode & stat.S_IWOTH:
        return "everyone"
    shared = seen.st_mode & stat.S_IWGRP and not _own(seen.st_gid)
    return f"the members of group {_group(seen.st_gid)}" if shared else ""


def user(uid: int) -> str:
    """A user's name, or its number where it has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _own(gid: int) -> bool:
    try:
        group, owner = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == owner.pw_gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
