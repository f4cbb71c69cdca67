"""Why a run has no result, from what its jobs have left; and what its spot check has found."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from relay.base import ending, lock
from relay.base.files import read_json, read_json_or
from relay.run_folder import attempts
from relay.spec.run import Run

_NOT_STARTED = "'FAILED'"  # Slurm's state of a job whose folder or program is not there


def no_verdict(gate: str, reference: str | None, results: Path) -> str:
    """Why a gate could give no verdict: its own fault, or its reference's; '' where neither has recorded one."""
    proofs = results / "equivalence"
    of_reference = _recorded(proofs / "references" / (reference or "-"))
    of_gate = _recorded(proofs / "gates" / gate)
    return (of_reference and f"reference: {of_reference}") or (of_gate and f"gate: {of_gate}")


def fault(run: Run, results: Path, unproven: str) -> str:
    work = results / "checkpoints" / run.id
    if lock.held(work):
        return "it is being trained just now: make the comparison again once it has ended"
    cause = _recorded(work) or _interrupted(work) or _without_environment(run, results)
    if not cause and unproven:
        return f"not trained, because nothing could prove it. {unproven}"
    return cause or f"no result: see {log_of(run.id, results)}"


def _without_environment(run: Run, results: Path) -> str:
    """Why the environment of the run's stack could not be made; '' where it could."""
    ended = ending.read(results / "logs" / "environment" / f"{run.stack}.log")
    return f"no environment of stack {run.stack}: {' '.join(ended.what.split())}" if ended else ""


def _interrupted(work: Path) -> str:
    """Where the last attempt was interrupted, if it saved and stopped in order; else ''."""
    last = max((int(path.stem.split("-")[1]) for path in work.glob("records/attempt-*.jsonl")), default=0)
    end = attempts.read(work, last).end
    if not end.get("stopped"):
        return ""
    return f"interrupted after step {end['end']} ({end['stopped']}): the same call again goes on from there"


def _recorded(work: Path) -> str:
    """The error that a job recorded in its work folder, in one line, and what helps; '' without one."""
    fault = read_json_or(work / "fault.json", {})
    if not fault.get("error"):
        return ""
    error = str(fault["error"]).partition(ending.QUOTED)[0]
    return "; ".join(" ".join(each.split()) for each in (error, str(fault.get("remedy") or "")) if each)


def log_of(identity: str, results: Path) -> Path:
    """The newest log of a job with the run's or gate's id in its path, or else the folder of Snakemake's own logs."""
    logs = results / "logs"
    named = (path for path in logs.rglob("*") if identity in str(path.relative_to(logs)) and path.is_file())
    # The log of `start` only notes a new start, so that it explains no failure.
    its = [path for path in named if path.relative_to(logs).parts[0] != "start"]
    return max(its, key=lambda path: path.stat().st_mtime, default=Path(".snakemake/log"))


Status = Literal["passed", "failed", "not checked", "off"]
_ORDER: tuple[Status, ...] = ("passed", "failed", "not checked", "off")


@dataclass(frozen=True)
class SpotChecked:
    """One run's spot check: what was found, and why it failed or could not be made. `off`: none was asked for."""

    status: Status = "off"
    reason: str = ""


def spot_checked(
    run: str, setting: str, results: Path, *, planned: bool, read: Callable[[Path], Any] = read_json
) -> SpotChecked:
    """What was found of a run. A verdict on an earlier start of the run, or one that cannot be read, is none.

    `read` gives a file's JSON: all repeats of a setting ask for the same one.
    """
    if not planned:
        return SpotChecked()
    try:
        verdict = read(results / "equivalence" / "spot_checks" / setting / "verdict.json") or {"runs": []}
        entry = next((each for each in verdict["runs"] if each["run"] == run), None)
        chain = read_json(results / "checkpoints" / run / "chain.json")  # None where the checkpoints were deleted
        if entry is None or (chain is not None and chain["generation"] != entry["generation"]):
            return SpotChecked("not checked", "its spot check has not been made")
        if entry["status"] in ("passed", "failed"):
            return SpotChecked(entry["status"], "; ".join(map(str, entry["problems"])))
        return SpotChecked("not checked", "; ".join(map(str, entry["unchecked"])) or "nothing could be compared")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return SpotChecked("not checked", f"results/equivalence/spot_checks/{setting}/verdict.json is damaged")


def summed_up(checks: Iterable[SpotChecked]) -> str | None:
    """All repeats in a few words, such as '4 passed, 1 not checked'; None for runs that are not there."""
    statuses = [each.status for each in checks]
    counts = [f"{statuses.count(status)} {status}" for status in _ORDER if status in statuses]
    return None if not statuses else "off" if set(statuses) == {"off"} else ", ".join(counts)


def stopped_by_preflight(preflight: str | None, stack: str, results: Path) -> list[str]:
    """The problems found by a run's preflight, because of which its jobs were not submitted; empty without any."""
    if not preflight:
        return []
    folder = results / "preflight" / preflight
    if (folder / "facts.json").is_file():
        return []
    if problems := read_json(folder / "problems.json"):
        return list(map(str, problems))
    log = results / "logs" / "preflight" / f"{preflight}.log"
    submitted = (results / "environments" / f"{stack}.json").is_file()  # the preflight waits for this file
    # Every job that ran has written to its log. For a job that did not, Snakemake makes an empty log.
    if not submitted or (log.is_file() and log.stat().st_size):
        return []
    ended = ending.read(log)
    reason = " ".join(ended.what.split()) if ended else "Slurm's reason, if it gave one, stands in Snakemake's log"
    if ended and _NOT_STARTED not in reason:
        return [f"its job did not run: {reason}"]
    return [
        f"its job did not run: {reason}; if that names none, {Path.cwd()} or {sys.executable} is not visible on the "
        "nodes: put both on a disk that they share"
    ]
