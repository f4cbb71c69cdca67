"""Why a run has no result, from what its jobs have left: a fault, an interruption, no environment, its log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relay.base import ending, lock
from relay.base.files import read_json
from relay.run_folder import attempts
from relay.spec.run import Run


def no_verdict(planned: Mapping[str, Any], results: Path) -> str:
    """Why a run's gate could give no verdict: its own fault, or its reference's; '' where neither has recorded one."""
    proofs = results / "equivalence"
    of_reference = _recorded(proofs / "references" / (planned.get("reference") or "-"))
    of_gate = _recorded(proofs / "gates" / planned["gate"])
    return (of_reference and f"reference: {of_reference}") or (of_gate and f"gate: {of_gate}")


def fault(run: Run, results: Path, unproven: str) -> str:
    work = results / "checkpoints" / run.id
    if lock.held(work):
        return "it is being trained just now: make the comparison again once it has ended"
    known = _recorded(work) or _interrupted(work) or _without_environment(run, results)
    if not known and unproven:
        return f"not trained, because nothing could prove it. {unproven}"
    return known or f"no result: see {log_of(run.id, results)}"


def _without_environment(run: Run, results: Path) -> str:
    """Why the environment of the run's stack could not be made; '' where it could."""
    told = ending.read(results / "logs" / "environment" / f"{run.stack}.log")
    return f"no environment of stack {run.stack}: {' '.join(told.what.split())}" if told else ""


def _interrupted(work: Path) -> str:
    """Where the last attempt was interrupted, if it saved and stopped in order; else ''."""
    last = max((int(path.stem.split("-")[1]) for path in work.glob("records/attempt-*.jsonl")), default=0)
    lines = attempts.read(work, last) if last else []
    if not lines or not lines[-1].get("stopped"):
        return ""
    return f"interrupted after step {lines[-1]['end']} ({lines[-1]['stopped']}): the same call again goes on from there"


def _recorded(work: Path) -> str:
    """The error that a job recorded in its work folder, in one line, and what helps; '' without one."""
    try:
        fault = read_json(work / "fault.json")
    except (OSError, json.JSONDecodeError):
        return ""
    if not isinstance(fault, dict) or not fault.get("error"):
        return ""
    told = str(fault["error"]).partition(ending.QUOTED)[0]
    return "; ".join(" ".join(each.split()) for each in (told, str(fault.get("remedy") or "")) if each)


def log_of(identity: str, results: Path) -> Path:
    """The newest log of a job with the run's or gate's id in its name, or else the folder of Snakemake's own logs."""
    logs = _logs(identity, results / "logs")
    return max(logs, key=lambda path: path.stat().st_mtime, default=Path(".snakemake/log"))


def _logs(identity: str, logs: Path) -> Iterator[Path]:
    for path in logs.rglob(f"*{identity}*"):
        if path.relative_to(logs).parts[0] == "start":
            continue  # it only notes a new start, so that its log explains no failure
        if path.is_file():
            yield path
        else:
            yield from (inner for inner in path.rglob("*") if inner.is_file())
