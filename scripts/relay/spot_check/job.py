"""The job of a spot check: all finished runs of one setting, in one process that loads what they have saved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relay.base.files import read_json, read_json_or, write_json, write_json_over
from relay.chain.sealed import steps
from relay.launch.launcher import Start, launch, started
from relay.run_folder import faults
from relay.run_folder.places import Places
from relay.run_folder.spots import FOLDER, states_folder, tidy
from relay.spec.run import Run, SpotCheck
from relay.training.changed_code import edited_since

KEPT_VERDICT = "verdict.json"  # beside a run's states: these are removed once they have passed
VERDICT = {"status", "spots", "problems", "unchecked", "generation"}


def run_spot_check(
    spec: Path,
    runs: Sequence[str],
    results: Path,
    output: Path,
    attempt: int = 1,
    start: Start = launch,
    beside: Sequence[str] = (),
) -> int:
    """Check these runs and write `verdict.json`; returns the job's exit status. `start` starts its process.

    `beside` are finished runs of other settings, whose jobs are to follow: the process checks them, too, and what it
    finds is kept for these jobs.

    A run that is found wrong is a verdict, not a failed job. What cannot be checked is told, and counts as not checked.
    Processes that were killed from outside are worth a retry.
    """
    if (ended := faults.begin(output.parent, "spot check", attempt)) is not None:
        return ended
    places = [Places(results, run) for run in runs]
    if any(_waits(each) for each in places):
        waiting = [each for each in [*places, *(Places(results, run) for run in beside)] if _waits(each)]
        verdicts_file = output.parent / "found.json"
        arguments = ["--results", str(results), "--runs", *(each.run_id for each in waiting)]
        status = started(spec, "spot_check.process", results, verdicts_file, arguments, start=start)
        if not verdicts_file.is_file():
            return faults.concluded(output.parent, "spot check", status)
        for verdict in read_json(verdicts_file):
            _keep(verdict, Places(results, verdict["run"]))
    verdicts = [_kept_verdict(each) for each in places]
    setting = SpotCheck.read(spec).id
    write_json(output, {"setting": setting, "runs": verdicts})
    for verdict in verdicts:
        print(_summary(verdict), flush=True)
    return 0


def _waits(places: Places) -> bool:
    """Whether a run has states that no check has passed, or was never checked."""
    return any(steps(states_folder(places.work))) or _kept_verdict(places) is None


def _keep(verdict: dict[str, Any], places: Places) -> None:
    """Keep what was found of a run: another repeat of its setting may be checked in another call.

    Where it was found wrong, what was edited meanwhile is told first.
    """
    if verdict["status"] == "failed" and (edited := edited_since(Run.read(places.run / "run.json"), places)):
        verdict["problems"].insert(0, edited)
    write_json_over(places.work / FOLDER / KEPT_VERDICT, verdict)
    if verdict["status"] == "passed":
        tidy(states_folder(places.work), [])


def _kept_verdict(places: Places) -> Any:
    """What an earlier job has found of a run; None where there is nothing, something damaged, or another run's."""
    verdict = read_json_or(places.work / FOLDER / KEPT_VERDICT, None)
    whole = isinstance(verdict, dict) and verdict.get("run") == places.run_id and set(verdict) >= VERDICT
    return verdict if whole else None


def _summary(verdict: dict[str, Any]) -> str:
    spots = ", ".join(f"{spot['kind']} after step {spot['first']}" for spot in verdict["spots"])
    reasons = verdict["problems"] or (verdict["unchecked"] if not verdict["spots"] else [])
    return f"spot check of {verdict['run']}: {verdict['status']} ({'; '.join(reasons) or spots})"
