"""What an older start of a run has trained: kept aside until the new start has a result.

`results/replaced/{run}/` holds the two folders of the run, `runs` and `checkpoints`. To take them back, move them back.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from relay.base.files import read_json_or, remove, sync_directory
from relay.base.lock import exclusive
from relay.run_folder import chain, sealed
from relay.run_folder.places import Places

KEPT = ("run.json", "proof.json")  # of the run's folder: they say what is to be trained


def folder(places: Places) -> Path:
    """Where an older start is kept."""
    return places.results / "replaced" / places.run_id


def trained(places: Places) -> str:
    """What there is of a run's training, in words; '' where there is nothing that a new start would replace."""
    if (places.run / "summary.json").exists():
        return "its result and checkpoints"
    known = chain.read(places.work)
    if known is None:  # nothing, or a checkpoint that the run took over and has not gone on from
        return ""
    steps = sealed.complete(places.work)
    return f"its checkpoints up to step {steps[0]}" if steps else "its records"


def put_aside(places: Places) -> None:
    """Move what a run has trained, so that its next start begins at step 0.

    What is aside already, because a new start was begun before, stays if it has a result. Raises Busy where a process
    trains the run, and OSError.
    """
    aside = folder(places)
    if not trained(places):
        return
    if _has_result(aside / "runs") and not _has_result(places.run):
        aside = places.results / "replaced" / f".{places.run_id}.unfinished"
    with exclusive(places.work):
        remove(aside)
        (aside / "runs").mkdir(parents=True)
        for path in sorted(places.run.iterdir()) if places.run.is_dir() else ():
            if path.name not in KEPT:
                path.rename(aside / "runs" / path.name)
        places.work.rename(aside / "checkpoints")
        (aside / "checkpoints" / "lock").unlink(missing_ok=True)
    sync_directory(aside)
    if aside != folder(places):
        remove(aside)


def forget(places: Places) -> None:
    """Remove what was aside: the new start has a result. Raises OSError."""
    aside = folder(places)
    if aside.exists():
        shutil.rmtree(aside)


def _has_result(run: Path) -> bool:
    found = read_json_or(run / "summary.json", None)
    return isinstance(found, dict) and found.get("status") == "done"
