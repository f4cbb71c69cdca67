"""The inputs of the comparison: the plan, and each run's specification, summary or fault, and verdict."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import MISSING, looked_at, read_json
from relay.base.typed import built
from relay.comparison.no_result import SpotChecked, fault, no_verdict, spot_checked, stopped_by_preflight
from relay.run_folder import attempts, proof_notes, run_chain
from relay.run_folder.summary import FILE, Summary
from relay.run_folder.verdicts import of_batch
from relay.spec.job import Job
from relay.spec.messages import show
from relay.spec.run import OwnBatch, Run, Setting
from relay.spec.site_blocks import Price

_PLAN_KEYS = ("runs", "skipped", "margin")
_PLANNED_KEYS = ("id", "setting", "gate", "segments")
# The keys of a verdict, with the types of their values. Other keys may be missing.
_VERDICT_KEYS: Mapping[str, tuple[type, ...]] = {
    "equivalent": (bool,),
    "max_loss_difference": (int, float, type(None)),
    **dict.fromkeys(("parts", "problems", "notes"), (list,)),
    "strategy_source": (str, type(None)),
}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run and its results: its summary, or the `error` why it has none, and its gate's verdict or None.

    `strategy_source` is the digest of the strategy's code that the run uses; None where it has not begun. `inherited`:
    what is found against the runs that it went on from. `job` is what its jobs asked Slurm for; None without a
    scheduler, and so is `preflight`, the id of the preflight of its shape. `dropped`: why its setting got no further
    repeats; '' where it got them all. `taken`: the CPUs and GPUs that it is charged for; None in an older plan.
    """

    run: Run
    gate: str
    segments: int
    summary: Summary | None
    error: str
    verdict: dict[str, Any] | None
    strategy_source: str | None = None
    inherited: tuple[str, ...] = ()
    spot_check: SpotChecked = SpotChecked()
    job: Job | None = None
    preflight: str | None = None
    dropped: str = ""
    taken: Mapping[str, int] | None = None

    @property
    def speed(self) -> float | None:
        """Samples per second; None for a run that failed or was too short to be timed."""
        speed = self.summary.samples_per_second if self.summary else None
        return float(speed) if speed and math.isfinite(speed) else None


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A setting that did not run, and the reasons."""

    setting: Setting
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All planned runs with their results, in the plan's order, and all skipped settings.

    `rules` are what the plan says of the answer: those of `Rules`, `least_minutes`, `most_minutes`, `site_flags`.
    `config` is the whole config, with all defaults; empty where another version wrote the plan.
    """

    runs: Sequence[RunResult]
    skipped: Sequence[Skipped]
    margin: float
    rules: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


def read_inputs(plan_path: Path, results: Path, *, partial: bool = False) -> Inputs:
    """Read the plan and the records of all runs below `results`.

    Raises UserError, with one line that names the file, for a run without a usable summary or verdict. With `partial`,
    such a run is a failed one with that reason. The plan and every `run.json` are needed in any case.
    """
    return inputs_of(_read(plan_path, dict.fromkeys(_PLAN_KEYS, (object,))), plan_path, results, partial=partial)


def inputs_of(plan: Mapping[str, Any], plan_path: Path, results: Path, *, partial: bool = False) -> Inputs:
    """The same for a plan that is read, or made; `plan_path` is named where something is wrong with it."""
    margin = plan["margin"]
    if not isinstance(margin, (int, float)) or not 0 <= margin < 1:
        raise UserError(f"{plan_path}: margin: {margin!r} is not allowed; allowed: from 0 to below 1")
    rules, config = plan.get("answer") or {}, plan.get("config") or {}
    try:
        Price.model_validate(rules.get("price") or {})
    except ValueError:
        allowed = "gpu_hour and cpu_hour, each greater than 0 or null, and currency, a text"
        raise UserError(
            f"{plan_path}: answer.price: {show(rules['price'])} is not allowed; allowed: {allowed}; make the plan again"
        ) from None
    runs, skipped = [], [_skipped(entry, plan_path) for entry in plan["skipped"]]
    shared = cache(read_json)  # the repeats of a setting share its verdicts
    for planned in plan["runs"]:
        if missing := [key for key in _PLANNED_KEYS if key not in planned]:
            raise UserError(f"{plan_path}: a run lacks '{missing[0]}'; make the plan again")
        result = _result(planned, plan, results, partial, shared)
        stopped = stopped_by_preflight(planned, result.run.stack, results) if result.summary is None else []
        if not stopped:
            runs.append(result)
            continue
        setting = Setting(**{each.name: getattr(result.run, each.name) for each in fields(Setting)})
        of = Skipped(setting=setting, reasons=tuple(f"preflight: {reason}" for reason in stopped))
        if of not in skipped:  # once for all repeats
            skipped.append(of)
    return Inputs(runs=runs, skipped=skipped, margin=float(margin), rules=rules, config=config)


def _skipped(entry: Any, path: Path) -> Skipped:
    """A skipped setting of the plan. Raises UserError where another version wrote it."""
    try:
        return Skipped(setting=built(Setting, entry["setting"]), reasons=tuple(map(str, entry["reasons"])))
    except (TypeError, KeyError, ValueError) as fault:
        raise UserError(f"{path}: skipped: is of another version ({fault}); make the plan again") from None


def _read(
    path: Path, keys: Mapping[str, tuple[type, ...]], read: Callable[[Path], Any] = read_json, **expected: str
) -> dict[str, Any]:
    """What a JSON file says. `keys` and the types of their values are needed. `expected`: whose it has to be.

    Raises UserError with one line where it is missing, damaged or another's.
    """
    why, value = looked_at(path, read=read, **expected)
    if why == MISSING:
        raise UserError(f"{path}: {why}; run the stage that makes it first")
    if not why and (missing := [key for key in keys if key not in value]):
        why = f"lacks '{missing[0]}', another version wrote it"
    elif damaged := [key for key, kinds in keys.items() if not why and not isinstance(value[key], kinds)]:
        why = f"'{damaged[0]}' is damaged ({value[damaged[0]]!r})"
    if why:
        raise UserError(f"{path}: {why}; remove it and run again")
    return value


def _result(
    planned: Mapping[str, Any], plan: Mapping[str, Any], results: Path, partial: bool, shared: Callable[[Path], Any]
) -> RunResult:
    """A run of the plan with its results. `shared` reads the files that it shares with other runs."""
    identity, gate = planned["id"], planned["gate"]
    path = results / "runs" / identity / "run.json"
    try:
        run, job = Run.from_dict(declared := _read(path, {})), Job.of(declared)
    except (TypeError, KeyError) as fault:
        raise UserError(f"{path}: is no run of this version ({fault}); make the plan again") from None
    unproven = no_verdict(planned, results)
    summary, error = _summary(run, results, partial, unproven)
    chain = None if summary else run_chain.read(results / "checkpoints" / identity)
    trained = summary or chain
    if summary and (refused := _no_result(summary)):
        summary, error = None, refused
    verdict_path = results / "equivalence" / "gates" / gate / "verdict.json"
    verdict = None
    if not partial or verdict_path.is_file():
        try:
            verdict = of_batch(_read(verdict_path, _VERDICT_KEYS, shared, gate=gate), OwnBatch.of(run))
        except UserError:
            if not partial:
                raise
    checked = plan.get("spot_checks", False)
    return RunResult(
        run=run,
        gate=gate,
        segments=len(planned["segments"]),
        summary=summary,
        error=error or (unproven if verdict is None else ""),
        verdict=verdict,
        strategy_source=trained.strategy_source if trained else None,
        inherited=tuple(proof_notes.inherited(results, trained.adopted_from if trained else None)),
        spot_check=spot_checked(identity, run.setting_id, results, planned=checked, read=shared),
        job=job,
        preflight=planned.get("preflight"),
        dropped=str((plan.get("dropped") or {}).get(run.setting_id, "")),
        taken=planned.get("taken"),
    )


def _no_result(summary: Summary) -> str:
    """Why a summary is no result: its own reason, or a loss in it that is not finite; '' where it is one."""
    if summary.status == "failed":
        return summary.reason or "the run has failed"
    try:
        curve = list(zip(summary.losses.steps, summary.losses.values, strict=True))
        refused = attempts.not_finite(curve, summary.evaluations)
    except (KeyError, TypeError, ValueError):
        return "the losses or evaluations of its summary.json are damaged; remove it and run again"
    numbers = {name: value for name, value in vars(summary).items() if isinstance(value, float)}
    wrong = next((name for name, value in numbers.items() if not math.isfinite(value)), None)
    if refused or wrong is None:
        return refused
    return (
        f"its {wrong} is {numbers[wrong]}, which no run records: its summary.json is damaged; remove it and run again"
    )


def _summary(run: Run, results: Path, partial: bool, unproven: str) -> tuple[Summary | None, str]:
    """The summary and '', or None and the error."""
    path = results / "runs" / run.id / FILE
    if partial and not path.is_file():
        return None, fault(run, results, unproven)
    try:
        return Summary.of(_read(path, {"run": (str,)}, run=run.id)), ""
    except UserError as error:
        told = str(error)
    except (TypeError, KeyError, ValueError) as error:
        told = f"{path}: is damaged, or of another version ({error}); remove it and run again"
    if not partial:
        raise UserError(told)
    return None, told
