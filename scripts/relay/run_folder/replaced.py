"""What an older start of a run has trained: kept aside until the new start has a result.

It lies in `runs/replaced/{run}` and `checkpoints/replaced/{run}`: beside where it was, for these may be on two disks.
The checkpoints are moved first, and the run's folder with its result by one rename: killed anywhere, nothing is lost.
"""

from pathlib import Path

from relay.base import entry
from relay.base.errors import UserError
from relay.base.files import read_json_or, remove, write_json
from relay.base.lock import exclusive
from relay.chain.files import sync
from relay.chain.sealed import complete
from relay.run_folder import run_chain
from relay.run_folder.places import Places

FOLDER = "replaced"
KEPT = ("run.json", "proof.json")  # they say what is to be trained


def aside(places: Places) -> Places:
    """Where an older start of the run is kept, as the folders of a run."""
    return _Aside(places.results, places.run_id)


class _Aside(Places):
    """The same two folders, one level further down."""

    @property
    def run(self) -> Path:
        return super().run.parent / FOLDER / self.run_id

    @property
    def work(self) -> Path:
        return super().work.parent / FOLDER / self.run_id


def how_anew(*names: str) -> str:
    """The command after which the next call trains these runs, or all of these strategies', from the start."""
    return entry.typed("train-again", *names)


def trained(places: Places) -> str:
    """What there is of a run's training, in words; '' where there is nothing that a new start would replace."""
    if not (places.run.exists() or places.work.exists()):  # as in a dry run of thousands of runs
        return ""
    if (places.run / "summary.json").exists():
        return "its result and checkpoints"
    # Without a chain there is nothing, or a checkpoint that it took over and has not gone on from.
    if run_chain.read(places.work) is not None:
        steps = complete(places.work)
        return f"its checkpoints up to step {steps[0]}" if steps else "its records"
    return "its state files" if run_chain.begun(places.run) else ""


def put_aside(places: Places) -> str:
    """Let a run's next start begin at step 0; what was done with what it has trained, in words.

    It is moved aside. If a result is aside already, because an earlier new start has come to none, that result stays,
    and what was trained since is deleted. Raises Busy where a process trains the run, and UserError for a disk's fault.
    """
    training, old = trained(places), aside(places)
    if not training:
        return ""
    try:
        with exclusive(places.work):
            if _has_result(old.run) and not _has_result(places.run):
                _clear(places)
                return f"{training} are deleted, and the result from before stays in {old.run}"
            if _holds(places.work):
                _move(places.work, old.work)
            if not (places.run / run_chain.START).exists():  # Snakemake removes it before a forced start
                chain = run_chain.read(old.work)
                generation = chain.generation if chain else run_chain.begun(places.run)
                write_json(places.run / run_chain.START, {"generation": generation})
            _move(places.run, old.run)
            for name in KEPT:
                if (old.run / name).exists():
                    places.run.mkdir(exist_ok=True)
                    (places.run / name).write_bytes((old.run / name).read_bytes())
    except OSError as error:
        raise UserError(f"run {places.run_id}: {error.filename}: cannot be moved aside: {error.strerror}") from None
    return f"{training} are moved to {old.run} and {old.work}"


def put_work_aside(places: Places) -> None:
    """Move checkpoints that are of no start of the run; the caller holds them. Raises OSError."""
    if _holds(places.work):
        _move(places.work, aside(places).work)


def take_back(places: Places) -> None:
    """Give a run what is aside, in place of what was trained since. Raises UserError where nothing is, and Busy.

    Where `put_aside` was killed between its two moves, the checkpoints alone are aside.
    """
    old = aside(places)
    if not old.run.exists() and (_holds(places.work) or not _holds(old.work)):
        raise UserError(f"run {places.run_id}: nothing of it is in {old.run}")
    with exclusive(places.work):
        for folder, goal in ((old.work, places.work), (old.run, places.run)):
            if _holds(folder):
                _move(folder, goal)


def forget(places: Places) -> None:
    """Remove what is aside: the new start has a result. A fault of the disk is a warning: the result counts."""
    for folder in (aside(places).run, aside(places).work):
        try:
            remove(folder)
        except OSError as error:
            print(f"warning: {folder}: cannot be removed: {error.strerror}; it is no longer needed", flush=True)


def _move(folder: Path, goal: Path) -> None:
    goal.parent.mkdir(parents=True, exist_ok=True)
    remove(goal)
    folder.rename(goal)
    sync(goal.parent)


def _clear(places: Places) -> None:
    remove(places.work)
    for path in places.run.iterdir() if places.run.is_dir() else ():
        if path.name not in KEPT:
            remove(path)


def _holds(folder: Path) -> bool:
    """Whether anything but its lock lies in a folder, as of checkpoints."""
    return folder.is_dir() and any(path.name != "lock" for path in folder.iterdir())


def _has_result(run: Path) -> bool:
    return bool(read_json_or(run / "summary.json", {}).get("status") == "done")
