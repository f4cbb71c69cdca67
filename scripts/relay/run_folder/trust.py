"""Nobody but the user puts something where jobs run or load it: a call closes its folders, and looks at those above."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from relay.base.errors import UserError
from relay.chain import writers

LEVELS = 3  # results/checkpoints/RUN: the run's own folder, and those above it that are the project's
# What jobs run, load, or are told to run: its folders below `results`, down to this depth.
OF_JOBS = {"code": 1, "equivalence": 2, "locks": 0, "runs": 1, "wheelhouses": 1}


def refuse_others(work: Path) -> None:
    """Raises UserError where another user could put something into a run's folder."""
    if problem := writers.unsafe_above(work, LEVELS):
        raise UserError(problem)


def keep_others_out(results: Path, sources: Sequence[Path] = ()) -> None:
    """Close the folders of what jobs run or load, and warn where a group could write there, or above.

    Raises UserError where another user could put something into one, or change one of the `sources`: files and folders
    that are the program. Whose these are does not matter.
    """
    os.umask(os.umask(0o077) | 0o022)  # for all that this process and its jobs make
    state = results.parent / ".snakemake"  # with environments
    program = [path for source in sources for path in (source, *source.rglob("*"))]
    for place in (state, *(path for path in program if path.name == "__pycache__")):  # before, by this process
        if place.is_dir() and not place.is_symlink() and place.stat().st_mode & 0o022:
            writers.keep_to_owner(place)
    own, around = [results, *([state] if state.is_dir() else [])], dict.fromkeys(writers.above(results))
    for name, depth in OF_JOBS.items():
        writers.make_own(results / name)
        refuse_others(results / name / "any")
        around |= dict.fromkeys(writers.above(results / name))
        own.append(results / name)
        own += (folder for level in range(1, depth + 1) for folder in (results / name).glob("*/" * level))
    program = [path for path in program if not path.is_symlink()]  # nobody can write to a link
    for path, folder in (*((path.resolve(), False) for path in own), *((path, True) for path in program)):
        with suppress(FileNotFoundError):  # such as bytecode that Python has just renamed
            if problem := writers.unsafe(path, folder=folder):
                raise UserError(problem)
    if line := writers.warning((*own, *around, *program), results, owners=False):
        print(line, file=sys.stderr)
