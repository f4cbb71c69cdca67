"""The job of a spot check: all finished runs of one setting, in one process that loads what they have saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relay.base.files import read_json, read_json_or, write_json_over, write_json_with_digest
from relay.launch.launcher import launch
from relay.run_folder import faults
from relay.run_folder.places import Places
from relay.run_folder.sealed import steps
from relay.run_folder.snapshot import freeze
from relay.run_folder.spots import FOLDER, states_folder, tidy
from relay.spec.run import Run, SpotCheck
from relay.training.changed_code import edited_since

Start = Callable[[Path, str, Path, Sequence[str], Path], int]
KEPT_VERDICT = "verdict.json"  # beside a run's states: these are removed once they have passed
VERDICT = {"status", "spots", "problems", "unchecked", "generation"}


def run_spot_check(
    spec: Path, runs: Sequence[str], results: Path, output: Path, attempt: int = 1, start: Start = launch
) -> int:
    """Check these runs and write `verdict.json`; returns the job's exit status. `start` starts its process.

    A run that is found wrong is a verdict, not a failed job. What cannot be checked is told, and counts as not checked.
    Processes that were killed from outside are worth a retry.
    """
    if (ended := faults.begin(output.parent, "spot check", attempt)) is not None:
        return ended
    places = [Places(results, run) for run in runs]
    waiting = [each for each in places if any(steps(states_folder(each.work))) or _known(each) is None]
    found: dict[str, dict[str, Any]] = {}
    if waiting:
        status = _start(spec, waiting, results, output.parent, start)
        if status != 0:
            return status
        for verdict in read_json(output.parent / "found.json"):
            found[verdict["run"]] = _with_edits(verdict, Places(results, verdict["run"]))
    for each in waiting:  # kept, because another repeat of the setting is checked in another call
        write_json_over(each.work / FOLDER / KEPT_VERDICT, found[each.run_id])
    verdicts = [_known(each) for each in places]
    setting = SpotCheck.read(spec).id
    write_json_with_digest(output, {"setting": setting, "runs": verdicts})
    for each, verdict in zip(places, verdicts, strict=True):
        if verdict["status"] == "passed":
            tidy(states_folder(each.work), [])
        print(_told(verdict), flush=True)
    return 0


def _with_edits(verdict: dict[str, Any], places: Places) -> dict[str, Any]:
    """A verdict that begins with what was edited meanwhile, where the run was found wrong."""
    if verdict["status"] != "failed" or not (edited := edited_since(Run.read(places.run / "run.json"), places)):
        return verdict
    return verdict | {"problems": [edited, *verdict["problems"]]}


def _known(places: Places) -> Any:
    """What an earlier job has found of a run; None where there is nothing, something damaged, or another run's."""
    known = read_json_or(places.work / FOLDER / KEPT_VERDICT, None)
    return known if isinstance(known, dict) and known.get("run") == places.run_id and set(known) >= VERDICT else None


def _start(spec: Path, waiting: Sequence[Places], results: Path, work: Path, start: Start) -> int:
    """Start the process; returns the job's exit status where it did not come to its end, else 0."""
    output = work / "found.json"
    output.unlink(missing_ok=True)
    arguments = ["--spec", str(spec), "--output", str(output), "--results", str(results)]
    arguments += ["--runs", *(places.run_id for places in waiting)]
    status = start(spec, "spot_check.process", work, arguments, freeze(None, results / "code"))
    return 0 if output.is_file() else faults.concluded(work, "spot check", status)


def _told(verdict: dict[str, Any]) -> str:
    spots = ", ".join(f"{spot['kind']} after step {spot['first']}" for spot in verdict["spots"])
    reasons = verdict["problems"] or (verdict["unchecked"] if not verdict["spots"] else [])
    return f"spot check of {verdict['run']}: {verdict['status']} ({'; '.join(reasons) or spots})"
