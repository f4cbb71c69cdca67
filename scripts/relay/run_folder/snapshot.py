"""The code is frozen with the plan: its runs and their proofs use it, whatever is edited while they wait.

And with the run: every segment of a chain runs the code that its first segment ran.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import read_json_or, remove, write_json
from relay.chain.files import sync
from relay.chain.writers import keep_to_owner, make_own, unsafe_within
from relay.spec.identity import beside, data_beside
from relay.spec.messages import show
from relay.spec.requirements import declared_files
from relay.spec.run import Specification
from relay.spec.script import Script

PACKAGE = Path(__file__).parents[1]
OWN_TASK = "own_task"  # in a snapshot: a user's task, with what it imports and declares beside it
# In a snapshot, beside the package: a user's script, with what it imports. Its parent folder has nothing of ours but
# the package, for scripts put that on their path.
OWN_SCRIPT = "own_script"
# Beside the package, so that they are no part of the digest.
COMMIT = "commit.json"
BYTECODE = "__pycache__"
NOTED = "noted.json"  # what was found out about the code
PLANNED = "planned.json"  # beside the snapshots: which of them the last plan's jobs use
GIT_SECONDS = 10.0


def _sources(strategy_file: Path | None, task_file: str, script: Script | None) -> dict[str, Path]:
    """The package's code and tables by relative names. A strategy of a further folder joins its strategies.

    So do the helper modules (`_*.py`) beside it, and the data files that a strategy declares: a snapshot needs no other
    folder. A user's task comes with what it imports and declares of its folder, a script with its files.
    """
    own = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.glob("run_folder/*.toml")])
    files = {str(path.relative_to(PACKAGE)): path for path in own}
    if strategy_file:
        paths = [*declared_files(strategy_file)]
        if strategy_file.resolve().parent != PACKAGE / "strategies":
            helpers = strategy_file.parent.glob("_*.py")
            paths += [strategy_file, *(helper for helper in helpers if helper.name != "__init__.py")]
        files |= {f"strategies/{path.relative_to(strategy_file.parent)}": path for path in paths}
    if task_file:
        files |= {f"{OWN_TASK}/{name}": path for name, path in own_files(Path(task_file)).items()}
    if script:
        files |= {f"{OWN_SCRIPT}/{script.frozen_name(file)}": Path(file) for file in script.files}
    return files


def own_files(task: Path) -> dict[str, Path]:
    """What jobs have of the folder of a user's task, by relative name: its file, what it imports, what it declares."""
    return {str(path.relative_to(task.parent)): path for path in sorted({*beside(task), *data_beside(task)})}


def freeze(strategy_file: Path | None, task_file: str = "", script: Script | None = None, *, folder: Path) -> Path:
    """Copy the package, a further folder's strategy and a user's task or script into `folder/{hash of the content}`.

    Returns that folder, which goes onto PYTHONPATH. A copy that is there is used. Raises UserError where the strategy's
    file or the task's cannot be read.
    """
    sources = _contents(strategy_file, task_file, script)
    frozen = folder / _digest(sources)
    problem = changed_since(frozen)
    if problem is None:
        return frozen
    make_own(folder)
    mark = f"{os.uname().nodename}.{os.getpid()}"
    partial = folder / f".{frozen.name}.{mark}"
    for name, (content, executable) in sources.items():
        path = _within(partial, name)
        (path.parent / BYTECODE).mkdir(parents=True, exist_ok=True)  # Python would make it as open as the umask is
        path.write_bytes(content)
        if executable:
            path.chmod(0o755)
        sync(path)
    if commit := _commit():
        (partial / COMMIT).write_text(json.dumps(commit) + "\n", encoding="utf-8")  # whole once `partial` is renamed
        sync(partial / COMMIT)
    keep_to_owner(partial)
    # Looked at again: another job may have made it meanwhile, and may run it already.
    if frozen.exists() and (problem := changed_since(frozen)):
        print(f"warning: the snapshot {frozen} of the code {problem}; it is made again", file=sys.stderr, flush=True)
        with suppress(OSError):  # moved first: a job may read it just now
            frozen.rename(aside := folder / f".changed-{frozen.name}.{mark}")
            remove(aside)
    try:
        partial.rename(frozen)
    except OSError:  # another job was first, with the same content
        shutil.rmtree(partial)
    return frozen


def name_of_today(strategy_file: Path | None, task_file: str = "", script: Script | None = None) -> str:
    """The name of the snapshot that `freeze` would make of today's code. Raises UserError as it does."""
    return _digest(_contents(strategy_file, task_file, script))


def planned(folder: Path, specification: Specification) -> dict[str, str]:
    """What the last plan has frozen for the jobs of a specification: the name of the `code` in `folder`, and digests.

    Empty where the plan knows nothing of it, such as a run that is started by hand, or where the snapshot was changed.
    """
    plan = read_json_or(folder / PLANNED, {})
    digests: dict[str, str] = plan.get(f"{specification.kind} {specification.id}", {})
    return digests if digests and changed_since(folder / digests["code"]) is None else {}


def noted(frozen: Path, name: str, find: Callable[[], str], is_todays: Callable[[], bool]) -> str:
    """What `find` says of the code of a snapshot, by this name; it is asked once, for all runs that the code trains.

    It reads today's files. So its answer is kept only where `is_todays` says that they still are the snapshot's.
    """
    notes = read_json_or(frozen / NOTED, {})
    if name not in notes:
        notes[name] = find()
        with suppress(OSError):  # what cannot be kept is found out again
            if is_todays():
                write_json(frozen / NOTED, notes)
    return str(notes[name])


def _contents(strategy_file: Path | None, task_file: str, script: Script | None) -> dict[str, tuple[bytes, bool]]:
    """What `freeze` copies, by relative name: content, and whether it can be executed."""
    paths = _sources(strategy_file, task_file, script)
    try:
        return {name: (path.read_bytes(), os.access(path, os.X_OK)) for name, path in paths.items()}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _commit() -> dict[str, object] | None:
    """The commit of the package's checkout, and whether the package was changed since; None without git."""
    try:
        commands = [["rev-parse", "HEAD"], ["status", "--porcelain", "--", str(PACKAGE)]]
        commit, changes = (
            subprocess.run(
                ["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=True, timeout=GIT_SECONDS
            ).stdout.strip()
            for words in commands
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changes)}


def changed_since(frozen: Path) -> str | None:
    """What has become of a snapshot, as the end of a sentence; None where it is as it was made.

    Its name is the digest of its files: of all but the bytecode that Python keeps beside them. A traceback names them,
    and leads to edits there.
    """
    package = frozen / "relay"
    if not package.is_dir():
        return "is gone"
    ours = {package.name, OWN_SCRIPT, COMMIT, NOTED}  # the whole folder is on Python's path; it imports no `.name`
    try:
        if more := [path.name for path in frozen.iterdir() if path.name not in ours and not path.name.startswith(".")]:
            return f"has {show(more[0])} in it, which was not frozen"
        if problem := unsafe_within(frozen):
            return f"is not yours alone: {problem}"
        files = {str(path.relative_to(package)): path for path in _files(package)}
        files |= {str(path.relative_to(frozen)): path for path in _files(frozen / OWN_SCRIPT)}
        digest = _digest({name: (path.read_bytes(), os.access(path, os.X_OK)) for name, path in files.items()})
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return None if digest == frozen.name else "was changed: its files do not have the digest that is its name"


def _within(frozen: Path, name: str) -> Path:
    """Where a file lies in a snapshot."""
    return frozen / name if name.startswith(f"{OWN_SCRIPT}/") else frozen / "relay" / name


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and BYTECODE not in path.parts]


def _digest(sources: Mapping[str, tuple[bytes, bool]]) -> str:
    """Of files' names and contents; of a script's also whether they can be executed."""
    digest = hashlib.sha256()
    for name, (content, executable) in sorted(sources.items()):
        mode = "x" if executable and name.startswith(f"{OWN_SCRIPT}/") else ""
        digest.update(f"{name}\0{len(content)}\0{mode}".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
