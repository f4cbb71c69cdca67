"""Why a command failed: the last error in its output, in that error's own words, and what helps."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice, takewhile
from pathlib import Path

from relay.base.errors import Told
from relay.run_folder.known_faults import Kind, look_up
from relay.script.observed import Observed
from relay.spec.script import Script

RANK = re.compile(r"^\[(rank|default)\d+\]:\s?")  # before what torch, or torchrun, prints of a rank
TRACEBACK = "Traceback (most recent call last):"
# Of what prints no traceback: a line as Python, argparse or a shell have it.
ERROR = re.compile(r"^([A-Za-z_][\w.]*(Error|Exception)\b|\S+: error: |\S+: .+: .*(not|No|denied)\b)")
LONGEST = 300
MESSAGE_LINES = 6  # of an error, that are looked at for what is known of it
# What was not there, as Python, a shell and Python's own start tell it.
MISSING = re.compile(r"""(?:directory: |can't open file )b?['"]([^'"]+)['"]|(\S+): No such file""")
MODULE = re.compile(r"No module named '?([A-Za-z_]\w*)")


def failed(how: str, observed: Observed, script: Script, folder: Path) -> Told:
    """The error of a command that ran in `folder` and ended in that way. Paths are told as from the run's folder."""
    lines, tree = observed.last_lines(), f"{_tree(script, folder)}/"
    error = error_in(lines)
    first = f"{error.splitlines()[0][:LONGEST]}; {how}" if error else f"{how}: {lines[-1][:LONGEST]}" if lines else how
    return Told(f"{first}{observed.shown()}".replace(tree, ""), remedy(error, script, folder))


def _tree(script: Script, folder: Path) -> Path:
    return folder.parents[len(script.within.parts) - 1] if script.within.parts else folder


def error_in(lines: Sequence[str]) -> str:
    """The error that ended a command, its first line and what follows that; '' where its output shows none.

    Where ranks lost each other, the error of the one that failed first counts.
    """
    plain, starts, within = [RANK.sub("", line) for line in lines], list[int](), False
    for number, line in enumerate(plain):
        if line == TRACEBACK:
            within = True
        elif within and line and not line[0].isspace():
            starts.append(number)
            within = False
    starts = starts or [number for number, line in enumerate(plain) if ERROR.match(line)][-1:]
    messages = [takewhile(lambda line: line != TRACEBACK, plain[number:]) for number in starts]
    errors = ["\n".join(islice(lines, MESSAGE_LINES)) for lines in messages]
    own = [error for error in errors if (row := look_up(error)) is None or row.kind != Kind.LOST_PEER]
    return (own or errors or [""])[-1]


def remedy(error: str, script: Script, folder: Path) -> str:
    """What helps against an error of a command that ran in `folder`; '' where nobody has met it."""
    row = look_up(error, "commands")
    if row is None:
        return ""
    if row.name == "file" and (named := MISSING.search(error)):
        return _of_file(named[1] or named[2], script, folder) or row.remedy
    if row.name == "module" and (named := MODULE.search(error)):
        return _of_module(named[1], script) or row.remedy
    return row.remedy


def _of_file(missing: str, script: Script, folder: Path) -> str:
    """The line of the config with which the command finds a file; '' for a whole path outside of its folder."""
    path = Path(os.path.normpath(folder / missing))
    if Path(missing).is_absolute() and not path.is_relative_to(_tree(script, folder)):
        return ""
    name = Path(os.path.relpath(path, folder))
    # Not the file alone, but the folder that is missing around it.
    upwards = [*reversed(name.parents), name]
    first = next((each for each in upwards if not (folder / each).exists()), name)
    place = first if first.exists() else "ITS_PLACE"
    return f"the command runs in a folder of its own; add to the comparison: links: {{{first}: {place}}}"


def _of_module(name: str, script: Script) -> str:
    """The same for a module of the user's, which lies here or beside the script."""
    near = [Path(), Path(script.folder), Path("..")]
    for place in (*near, *sorted(Path().glob("[A-Za-z]*/"))):
        for module in (place / f"{name}.py", place / name):
            if module.exists():
                link = module if place in near else place  # a folder that the script adds to Python's path
                return f"it is a file of yours; add to the comparison: links: {{{link}: {link}}}"
    return ""
