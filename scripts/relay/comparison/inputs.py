"""What the stages before have left: the plan, and of each run its spec, summary or fault, and verdict."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json
from relay.run_folder import attempts
from relay.spec.run import Run, Setting, built

_PLAN_KEYS = ("runs", "skipped", "margin")
_PLANNED_KEYS = ("id", "setting", "gate", "segments")
_SUMMARY_KEYS = (
    *("samples_per_second", "measured_steps", "segments", "attempts", "goodput", "allocated_seconds"),
    *("peak_memory_bytes", "test_accuracy", "evaluations", "losses", "hosts", "device_name", "versions"),
    *("code", "strategy_source"),
)
_VERDICT_KEYS = ("equivalent", "max_loss_difference", "parts", "problems", "notes", "strategy_source")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run and what is known of it: its summary, or the `error` why it has none; its verdict or None.

    `strategy_source` is the digest of the strategy's code that it runs, or ran; None where it has not begun.
    """

    run: Run
    gate: str
    segments: int
    summary: dict[str, Any] | None
    error: str
    verdict: dict[str, Any] | None
    strategy_source: str | None = None

    @property
    def speed(self) -> float | None:
        """Samples per second; None for a run that failed or was too short to be timed."""
        speed = self.summary["samples_per_second"] if self.summary else None
        return float(speed) if speed and math.isfinite(speed) else None


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A setting that did not run, and why."""

    setting: Setting
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Everything that was planned and what became of it; `records` are in the plan's order."""

    records: Sequence[Record]
    skipped: Sequence[Skipped]
    margin: float


def read_inputs(plan_path: Path, results: Path, *, partial: bool = False) -> Inputs:
    """Read the plan and every run's records below `results`.

    A run without a usable summary, or whose gate has no verdict, is a UserError of one line that names the
    file; with `partial`, it is a failed run with the reason instead. The plan and each `run.json` must be
    there in any case.
    """
    plan = _read(plan_path, _PLAN_KEYS)
    margin = plan["margin"]
    if not isinstance(margin, (int, float)) or not 0 <= margin < 1:
        raise UserError(f"{plan_path}: margin: {margin!r} is not allowed; allowed: from 0 to below 1")
    records, skipped = [], [_skipped(entry, plan_path) for entry in plan["skipped"]]
    for planned in plan["runs"]:
        missing = [key for key in _PLANNED_KEYS if key not in planned]
        if missing:
            raise UserError(f"{plan_path}: a run lacks '{missing[0]}'; make the plan again")
        record = _record(planned, results, partial)
        stopped = _stopped_by_preflight(planned, record.run.stack, results) if record.summary is None else []
        if not stopped:
            records.append(record)
        else:
            of = Skipped(setting=_setting(record.run), reasons=tuple(f"preflight: {reason}" for reason in stopped))
            if of not in skipped:  # once for all repeats
                skipped.append(of)
    return Inputs(records=records, skipped=skipped, margin=float(margin))


def _stopped_by_preflight(planned: dict[str, Any], stack: str, results: Path) -> list[str]:
    """What the preflight of the run's shape found, for which its jobs were not submitted; empty for nothing."""
    if not planned.get("preflight"):
        return []
    folder = results / "preflight" / planned["preflight"]
    if (folder / "facts.json").is_file():
        return []
    if problems := read_json(folder / "problems.json"):
        return list(map(str, problems))
    log = results / "logs" / "preflight" / f"{planned['preflight']}.log"
    asked = (results / "environments" / f"{stack}.json").is_file()  # what the job waited for
    # A job says at least one word; where there is no log, Snakemake makes an empty one.
    if asked and not (log.is_file() and log.stat().st_size):
        return [
            "its job did not run: Slurm's reason, if it gave one, stands in Snakemake's log; if not, "
            f"{Path.cwd()} or {sys.executable} is not visible on the nodes: put both on a disk that they share"
        ]
    return []


def _skipped(entry: Any, path: Path) -> Skipped:
    """A skipped setting of the plan. Raises UserError where it is of another version."""
    try:
        return Skipped(setting=built(Setting, entry["setting"]), reasons=tuple(map(str, entry["reasons"])))
    except (TypeError, KeyError) as fault:
        raise UserError(f"{path}: skipped: is of another version ({fault}); make the plan again") from None


def _setting(run: Run) -> Setting:
    """What the run's repeats have in common."""
    return Setting(**{each.name: getattr(run, each.name) for each in fields(Setting)})


def read_json_file(path: Path) -> Any:
    """Parsed JSON. Raises UserError with one line where the file is missing, unreadable or no JSON."""
    try:
        value = read_json(path)
    except (OSError, ValueError) as error:
        told = "is no JSON" if isinstance(error, ValueError) else f"cannot be read ({error.strerror})"
        raise UserError(f"{path}: {told}; remove it and run again") from None
    if value is None:
        raise UserError(f"{path}: is missing; run the stage that makes it first")
    return value


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    value = read_json_file(path)
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        raise UserError(f"{path}: lacks '{missing[0]}', another version wrote it; remove it and run again")
    result: dict[str, Any] = value
    return result


def _record(planned: dict[str, Any], results: Path, partial: bool) -> Record:
    identity, gate = planned["id"], planned["gate"]
    path = results / "runs" / identity / "run.json"
    try:
        run = Run.from_dict(_read(path, ()))
    except (TypeError, KeyError) as fault:
        raise UserError(f"{path}: is no run of this version ({fault}); make the plan again") from None
    summary, error = _summary(identity, results, partial)
    chain = summary or read_json(results / "checkpoints" / identity / "chain.json") or {}
    source = chain.get("strategy_source")
    if summary and (diverged := attempts.not_finite(_curve(summary), summary["evaluations"])):
        summary, error = None, diverged
    verdict_path = results / "equivalence" / "gates" / gate / "verdict.json"
    verdict = None
    if not partial or verdict_path.is_file():
        try:
            verdict = _read(verdict_path, _VERDICT_KEYS)
        except UserError:
            if not partial:
                raise
    if verdict is None and not error:
        places = (results / "equivalence" / "gates" / gate, results / "equivalence" / "references")
        error = next(
            (f"gate: {told}" for told in map(_told, (places[0], places[1] / planned.get("reference", "-"))) if told), ""
        )
    segments = len(planned["segments"])
    return Record(
        run=run, gate=gate, segments=segments, summary=summary, error=error, verdict=verdict, strategy_source=source
    )


def _curve(summary: dict[str, Any]) -> list[tuple[int, float]]:
    """The loss curve as (step, training loss)."""
    return list(zip(summary["losses"]["steps"], summary["losses"]["values"], strict=True))


def _summary(identity: str, results: Path, partial: bool) -> tuple[dict[str, Any] | None, str]:
    """The summary and no error, or none and why."""
    path = results / "runs" / identity / "summary.json"
    if not partial:
        return _read(path, _SUMMARY_KEYS), ""
    if not path.is_file():
        return None, _fault(identity, results)
    try:
        return _read(path, _SUMMARY_KEYS), ""
    except UserError as error:
        return None, str(error)


def _fault(identity: str, results: Path) -> str:
    work = results / "checkpoints" / identity
    return _told(work) or _interrupted(work) or f"no result: see {log_of(identity, results)}"


def _interrupted(work: Path) -> str:
    """How far the last attempt came that was stopped in order; '' where there is none."""
    last = max((int(path.stem.split("-")[1]) for path in work.glob("records/attempt-*.jsonl")), default=0)
    lines = attempts.read(work, last) if last else []
    if not lines or not lines[-1].get("stopped"):
        return ""
    return f"interrupted after step {lines[-1]['end']} ({lines[-1]['stopped']}): the same call again goes on from there"


def _told(work: Path) -> str:
    """The error that a job recorded there, in one line; empty where it recorded none."""
    try:
        fault = read_json(work / "fault.json")
    except (OSError, json.JSONDecodeError):
        return ""
    return " ".join(str(fault["error"]).split()) if isinstance(fault, dict) and fault.get("error") else ""


def log_of(identity: str, results: Path) -> Path:
    """The newest log of a job that carries the run's or gate's name, or Snakemake's own where none does."""
    logs = _logs(identity, results / "logs")
    return max(logs, key=lambda path: path.stat().st_mtime, default=Path(".snakemake/log"))


def _logs(identity: str, logs: Path) -> Iterator[Path]:
    for path in logs.rglob(f"*{identity}*"):
        if path.relative_to(logs).parts[0] in ("specification", "start"):
            continue  # what was asked for: it tells nothing of what happened
        if path.is_file():
            yield path
        else:
            yield from (inner for inner in path.rglob("*") if inner.is_file())
