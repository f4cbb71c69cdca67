"""Who beside its user could write to a file or a folder. Needs no torch.

torch's sharded checkpoints are read with pickle, which can run code: whoever writes one acts as its reader. What
everybody or another user could have written is refused. Of a group's right to write, which an open umask or a mount
gives, a warning tells.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from .errors import say

OTHERS = stat.S_IWGRP | stat.S_IWOTH
EVERYONE = "everyone"


def unsafe(path: Path, *, folder: bool) -> str | None:
    """Why nothing of a checkpoint may be read, in one line; None where that may be.

    `folder`: the chain's folder, which may be a link, or a colleague's. All else is the checkpoint's own.
    """
    seen = path.stat() if folder else path.lstat()
    if stat.S_ISLNK(seen.st_mode):
        return f"{path} is a link"
    if seen.st_uid not in (os.geteuid(), 0) and not folder:
        return f"{path} belongs to another user ({user(seen.st_uid)}); remove it, or give a folder on another disk"
    if seen.st_mode & stat.S_IWOTH and not seen.st_mode & stat.S_ISVTX:
        return f"{path} can be written by everyone; chmod o-w it, or give a folder on another disk"
    return None


def tell(folder: Path, place: Path | None = None) -> None:
    """Warn, once, where others could write to the chain's folder, or else to a checkpoint in it. Raises OSError."""
    if place and _who(folder):
        return  # that was told
    for path in [place, *sorted(place.rglob("*"))] if place else [folder]:
        if who := _who(path):
            remedy = f"chmod -R g-w,o-w {folder}, or trust them"
            say(f"warning: {path} can be written by {who}, who could act as you; {remedy}")
            return


def close(path: Path) -> None:
    """Take the right to write from all but the owner. Raises OSError."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS)


def _who(path: Path) -> str:
    """Who could write to it beside its user; '' where nobody can."""
    seen = path.stat()
    if seen.st_uid not in (os.geteuid(), 0):
        return f"its owner ({user(seen.st_uid)})"
    return "" if seen.st_mode & stat.S_ISVTX else others(seen)


def others(seen: os.stat_result) -> str:
    """Who can write beside the owner: `EVERYONE`, or the members of a group; '' where nobody can.

    A group of the user's own, with no other member, counts for nobody. Systems with such groups let them write.
    """
    if seen.st_mode & stat.S_IWOTH:
        return EVERYONE
    return (
        f"the members of group {_group(seen.st_gid)}" if seen.st_mode & stat.S_IWGRP and not _own(seen.st_gid) else ""
    )


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
