"""What a folder of results has to be before a call works there: of this version's layout, and its user's alone.

Results of two layouts are never mixed. Nobody but the user puts something where jobs run or load it: a call closes its
folders, and looks at those above.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import read_json_or, write_json
from relay.chain import writers
from relay.run_folder.sound_checkpoints import refuse_others
from relay.spec.run import Training

# 1: flat fields in run.json, modules of the frozen code in one folder. 2: groups of fields, packages.
# 3: what changes the arithmetic is part of every name; verdicts and records say with what they were made.
# 4: a task is a file, whose card is written into each run; prepared data have another form.
# 5: own batches have their own learning rates. 6: a checkpoint has the form of a user's chain.
LAYOUT = 6
FILE = "layout.json"
# What no later version could go on with; wheelhouses and environments are good for all.
OF_A_LAYOUT = ("runs", "checkpoints", "equivalence", "code", "speeds", "probe")
SPECIFICATIONS = ("runs/*/run.json", "equivalence/gates/*/gate.json", "equivalence/references/*/reference.json")
# What jobs run, load, or are told to run: its folders, down to this depth.
OF_JOBS = {"code": 1, "equivalence": 2, "locks": 0, "runs": 1, "wheelhouses": 1}
FOLDERS = (*OF_A_LAYOUT, "datasets", "logs", "benchmarks", "environments")


def refuse_other(results: Path) -> bool:
    """Whether a folder of results has this version's layout noted.

    Raises UserError for one of another layout, and where something else is in the place of a folder.
    """
    _check_folders(results)
    note = read_json_or(results / FILE, None)  # None, too, where it was cut off
    if note is not None and not (isinstance(note, dict) and "layout" in note):
        raise UserError(
            f"{results / FILE}: has no key 'layout'; allowed: {{\"layout\": {LAYOUT}}}. Remove the file: results of "
            "this version are known without it, and it is written again"
        )
    layout = note["layout"] if note else None
    if layout is None and any((results / name).exists() for name in OF_A_LAYOUT):
        layout = LAYOUT if _has_todays(results) else 1
        if layout == LAYOUT:  # the note was lost: it is written again
            return False
    if layout not in (None, LAYOUT):
        raise UserError(
            f"{results}: made by another version of Torch Relay (layout {layout}, this one has {LAYOUT}): "
            "runs have other names, and their frozen code starts in another way. Nothing is lost: move it "
            f"(mv {results} {results}-{layout}) and begin again here, or continue with the version that made it"
        )
    return layout is not None


def _has_todays(results: Path) -> bool:
    """Whether a folder of results without a note is of this layout: it has a specification that can be read."""
    for path in chain.from_iterable(results.glob(pattern) for pattern in SPECIFICATIONS):
        with suppress(UserError):
            return bool(Training.read(path))
    return False


def _check_folders(results: Path) -> None:
    """Raise UserError where a file, or a link to nothing, is in the place of a folder."""
    for path in (results, *(results / name for name in FOLDERS)):
        if path.is_symlink() and not path.exists():
            target = path.readlink()
            raise UserError(f"{path}: is a link to {target}, which is not there: make that folder, or remove the link")
        if path.exists() and not path.is_dir():
            raise UserError(f"{path}: is a file, and a folder has to be there: move it away")


def check_layout(results: Path) -> None:
    """Note this version's layout in a folder of results that has none. Raises UserError for one of another layout."""
    if not refuse_other(results):
        write_json(results / FILE, {"layout": LAYOUT})


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
