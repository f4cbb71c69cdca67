"""The inputs of the comparison: the plan, and each run's specification, summary or fault, and verdict."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

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

Read = Callable[[Path], Any]  # of the JSON in a file
Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run as the plan has it. `segments`: the steps at which its jobs end.

    `preflight` is that of its shape; None without a scheduler. `taken`: the CPUs and GPUs that it is charged for; None
    in an older plan.
    """

    id: str
    gate: str
    segments: Sequence[int]
    reference: str | None = None
    preflight: str | None = None
    taken: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run and its results: its summary, or the `error` why it has none, and its gate's verdict or None.

    `strategy_source` is the digest of the strategy's code that the run uses; None where it has not begun. `inherited`:
    what is found against the runs that it went on from. `job` is what its jobs asked Slurm for; None without a
    scheduler. `dropped`: why its setting got no further repeats; '' where it got them all.
    """

    run: Run
    planned: PlannedRun
    summary: Summary | None
    error: str
    verdict: dict[str, Any] | None
    strategy_source: str | None = None
    inherited: tuple[str, ...] = ()
    spot_check: SpotChecked = SpotChecked()
    job: Job | None = None
    dropped: str = ""

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
class _Plan:
    """What the comparison reads of plan.json; a value that may be missing was not in older ones."""

    runs: Sequence[PlannedRun]
    skipped: Sequence[Skipped]
    margin: float
    answer: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    spot_checks: bool = False


@dataclass(frozen=True, kw_only=True)
class _Part:
    name: str
    passed: bool


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What the comparison reads of a verdict, and of its steps at a run's own batch. The page shows all figures."""

    equivalent: bool
    parts: Sequence[_Part]
    problems: Sequence[str]
    notes: Sequence[str]
    samples_per_rank: Sequence[float] | None = None
    bytes_sent_per_step: Sequence[float] | None = None
    bytes_held_share: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Verdict(_Judged):
    max_loss_difference: float | None
    strategy_source: str | None
    versions: Mapping[str, str | None] | None = None
    own_batches: Sequence[_Judged] = ()


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
    return inputs_of(_read(plan_path), plan_path, results, partial=partial)


def inputs_of(content: Mapping[str, Any], plan_path: Path, results: Path, *, partial: bool = False) -> Inputs:
    """The same for a plan that is read, or made; `plan_path` is named where something is wrong with it."""
    plan = _typed(_Plan, content, plan_path)
    if not 0 <= plan.margin < 1:
        raise UserError(f"{plan_path}: margin: {plan.margin!r} is not allowed; allowed: from 0 to below 1")
    try:
        Price.model_validate(plan.answer.get("price") or {})
    except ValueError:
        given, allowed = show(plan.answer["price"]), "gpu_hour and cpu_hour, each greater than 0 or null, and currency"
        raise UserError(
            f"{plan_path}: answer.price: {given} is not allowed; allowed: {allowed}, a text; make the plan again"
        ) from None
    runs, stopped = [], dict[str, Skipped]()
    shared = cache(read_json)  # the repeats of a setting share its verdicts
    for planned in plan.runs:
        result = _result(planned, plan, results, partial, shared)
        why = stopped_by_preflight(planned.preflight, result.run.stack, results) if result.summary is None else []
        if why:  # told once for all repeats
            reasons = tuple(f"preflight: {reason}" for reason in why)
            stopped.setdefault(result.run.setting_id, Skipped(setting=result.run, reasons=reasons))
        else:
            runs.append(result)
    skipped = [*plan.skipped, *stopped.values()]
    return Inputs(runs=runs, skipped=skipped, margin=plan.margin, rules=plan.answer, config=plan.config)


def _read(path: Path, read: Read = read_json, **expected: str) -> dict[str, Any]:
    """What a JSON file says. `expected`: whose it has to be.

    Raises UserError with one line where it is missing, damaged or another's.
    """
    why, content = looked_at(path, read=read, **expected)
    if why:
        remedy = "run the stage that makes it first" if why == MISSING else "remove it and run again"
        raise UserError(f"{path}: {why}; {remedy}")
    return content


def _typed(kind: type[Kind], content: Mapping[str, Any], path: Path) -> Kind:
    """What a file holds, as this dataclass. Raises UserError, with one line, where it is something else."""
    try:
        return built(kind, content, passing_over=True)
    except (TypeError, KeyError, ValueError) as error:
        why = f"is damaged, or of another version ({error})"
        raise UserError(f"{path}: {why}; remove it and run again") from None


def _result(planned: PlannedRun, plan: _Plan, results: Path, partial: bool, shared: Read) -> RunResult:
    """A run of the plan with its results. `shared` reads the files that it shares with other runs."""
    identity, gate = planned.id, planned.gate
    path = results / "runs" / identity / "run.json"
    try:
        run, job = Run.from_dict(declared := _read(path)), Job.of(declared)
    except (TypeError, KeyError) as damage:
        raise UserError(f"{path}: is no run of this version ({damage}); make the plan again") from None
    unproven = no_verdict(gate, planned.reference, results)
    summary, error = _summary(run, results, partial, unproven)
    chain = None if summary else run_chain.read(results / "checkpoints" / identity)
    trained = summary or chain
    if summary and (refused := _no_result(summary)):
        summary, error = None, refused
    try:
        verdict = _verdict(run, gate, results, shared)
    except UserError:
        if not partial:
            raise
        verdict = None
    return RunResult(
        run=run,
        planned=planned,
        summary=summary,
        error=error or (unproven if verdict is None else ""),
        verdict=verdict,
        strategy_source=trained.strategy_source if trained else None,
        inherited=tuple(proof_notes.inherited(results, trained.adopted_from if trained else None)),
        spot_check=spot_checked(identity, run.setting_id, results, planned=plan.spot_checks, read=shared),
        job=job,
        dropped=plan.dropped.get(run.setting_id, ""),
    )


def _verdict(run: Run, gate: str, results: Path, shared: Read) -> dict[str, Any]:
    """What the run's gate says of it. Raises UserError where there is no verdict that is sound."""
    path = results / "equivalence" / "gates" / gate / "verdict.json"
    content = _read(path, shared, gate=gate)
    _typed(_Verdict, content, path)
    return of_batch(content, OwnBatch.of(run))


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
        return _typed(Summary, _read(path, run=run.id), path), ""
    except UserError as damage:
        if not partial:
            raise
        return None, str(damage)
