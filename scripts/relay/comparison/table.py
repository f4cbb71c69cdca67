"""The two tables: one of all runs, and one of all settings, with repeats combined and compared with the fastest."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relay.base.grouped import grouped
from relay.comparison.columns import COMPARISON, POOLED, POOLED_FIGURES, RUNS, Row, category, eligible
from relay.comparison.inputs import Inputs, RunResult, Skipped
from relay.comparison.no_result import Status, summed_up
from relay.comparison.objections import by_repeat, mixed, not_learning, outliers, proven, refusals
from relay.comparison.scaling import scale
from relay.comparison.setting_result import by_setting, relative_speed, rounds_of
from relay.comparison.statistics import first_by_pairs, geometric_mean, standing
from relay.run_folder.summary import Summary
from relay.spec import strategy_files
from relay.spec.labels import comparable, flat, options_text, trained, training_of, trainings
from relay.spec.run import Setting

_CATEGORIES = ("done", "dropped", "struck out", "learns nothing", "failed", "skipped")


def comparison_rows(inputs: Inputs) -> list[Row]:
    """One row per setting, for `comparison.csv`. Of what is trained, the fastest comes first, and skipped ones last."""
    groups = by_setting(inputs.runs)
    rows = {setting: _pooled(group) for setting, group in groups.items()}
    skipped = [_skipped(entry) for entry in inputs.skipped]
    done = {setting: groups[setting] for setting, row in rows.items() if category(row) == "done"}
    for setting, why in not_learning(done).items():
        rows[setting] |= {"status": "learns nothing", "reason": "; ".join(filter(None, [why, rows[setting]["reason"]]))}
    _tell_apart(rows, groups, skipped)
    _compare(rows, groups, inputs.margin)
    scale(rows, groups)
    done = {setting: group for setting, group in done.items() if category(rows[setting]) == "done"}
    warnings_by_kind = (outliers(done), mixed(groups))
    for setting, row in rows.items():
        row["warning"] = "; ".join(warnings[setting] for warnings in warnings_by_kind if setting in warnings) or None
    everything = [*rows.values(), *skipped]
    places: dict[str, int] = {}
    for row, what in zip(everything, trained(everything), strict=True):
        row |= {"trained": what, "margin": inputs.margin}
        places.setdefault(what, len(places))
    complete = [{name: row.get(name) for name in COMPARISON} for row in everything]
    return sorted(complete, key=lambda row: (str(row["task"]), places[row["trained"]], *_order(row)))


def run_row(result: RunResult) -> Row:
    """The row of a run, for `runs.csv`."""
    run, summary = result.run, result.summary
    measured = {name: getattr(summary, name, None) for name in RUNS}
    return measured | {
        "run": run.id,
        "setting": run.setting_id,
        "task": run.task.name,
        "strategy": run.strategy.name,
        "repeat": run.repeat,
        "seed": run.seed,
        "device": run.shape.device,
        "segments": len(result.planned.segments),
        "status": "done" if summary else "failed",
        "reason": result.error or _spot_check(result, "failed") or _remark(result),
        "spot_check": result.spot_check.status if summary else None,
        "samples_per_second": result.speed,
        "hosts": " ".join(summary.hosts) if summary else "",
        "versions": versions_text(summary.versions) if summary else "",
    }


def versions_text(versions: Mapping[str, Any]) -> str:
    """Versions as a text, such as 'python 3.11.2; torch 2.13.0'. What has no version (CUDA on CPUs) is left out."""
    return "; ".join(f"{name} {version}" for name, version in sorted(versions.items()) if version)


def _remark(result: RunResult) -> str:
    """A note on a run that is done: its own, or why it has no speed; '' without any."""
    if result.summary is None or result.summary.reason:
        return result.summary.reason if result.summary else ""
    return "" if result.speed else "no step after the warm-up was measured: train longer"


def _spot_check(result: RunResult, status: Status) -> str:
    """What a finished run's spot check has to tell, where it ended so; else ''."""
    check, what = result.spot_check, "not spot-checked" if status == "not checked" else "spot check failed"
    return f"{what}: {check.reason}" if result.summary and check.status == status else ""


def _pooled(repeats: Sequence[RunResult]) -> Row:
    """The row of a setting, of all its repeats."""
    run, finished = repeats[0].run, [each.summary for each in repeats if each.summary]
    return {
        **_setting_columns(run),
        "repeats": len(finished),
        "repeats_planned": len(repeats),
        "segments": max(len(each.planned.segments) for each in repeats),
        "gate": repeats[0].planned.gate,
        "setting": run.setting_id,
        "goodput": _goodput(finished),
        **{name: _one(column.pooled, [getattr(each, name) for each in finished])
           for name, column in POOLED_FIGURES.items()},
        **_speed([*rounds_of(repeats).values()], run.shape.devices),
        "hosts": " ".join(sorted({host for summary in finished for host in summary.hosts})) or None,
        "spot_checks": summed_up(each.spot_check for each in repeats if each.summary),
        **_judged(repeats),
    }  # fmt: skip


def _one(pooled: str, values: Sequence[Any]) -> Any:
    """The repeats' values of a figure as one; None where no repeat has it."""
    there = [value for value in values if value is not None]
    return POOLED[pooled](there) if there else None


def _speed(speeds: Sequence[float], devices: int) -> Row:
    """The mean speed of the repeats that were timed, with its interval; nothing without any."""
    if not speeds:
        return {}
    speed = geometric_mean(speeds)
    return speed.columns("samples_per_second") | {"samples_per_second_per_device": speed.value / devices}


def _goodput(finished: Sequence[Summary]) -> float | None:
    """Time on steps that were kept, divided by the allocated time, over all repeats; longer repeats weigh more."""
    timed = [(each.goodput, each.allocated_seconds) for each in finished if each.goodput is not None]
    allocated = math.fsum(seconds for _, seconds in timed)
    return math.fsum(goodput * seconds for goodput, seconds in timed) / allocated if allocated else None


def _judged(repeats: Sequence[RunResult]) -> Row:
    """What its gate and its spot checks say of a setting, what became of it, and all that is to be said of that."""
    first, gated = repeats[0], repeats[0].verdict is not None
    verdict = (first.verdict if proven(repeats) else None) or {}  # that of other code is not these runs'
    failed_checks = by_repeat(repeats, lambda each: _spot_check(each, "failed"))
    refused = [*refusals(repeats), *failed_checks] if gated else []
    faults = by_repeat(repeats, lambda each: _error(each, refused))
    if not gated:
        faults.insert(0, "the equivalence gate gave no verdict")
    dropped = "" if refused or faults else first.dropped
    unproven, lossy = verdict.get("unprovable"), verdict.get("lossy")
    notes = [
        # Of scripts it is known, and stands in the answer.
        f"measured, not proven: because {unproven}" if unproven and not first.run.strategy.script else "",
        *by_repeat(repeats, _remark),
        f"{lossy} is lossy: its update is only bounded by the gate" if lossy else "",
        *by_repeat(repeats, lambda each: _spot_check(each, "not checked")),
    ]
    judged = gated and bool(refused or not unproven)
    return {
        "max_loss_difference": verdict.get("max_loss_difference"),
        "lossy": lossy,
        "status": "failed" if faults else "dropped" if dropped else "done",
        "equivalent": not refused if judged else None,
        "unproven": None if refused else unproven,
        "reason": "; ".join(filter(None, [*refused, *faults, dropped, *notes])) or None,
    }


def _error(result: RunResult, refused: Sequence[str]) -> str:
    """The run's error; only that there is one where the gate's problems have its words already."""
    return "failed likewise" if any(result.error and result.error in problem for problem in refused) else result.error


def _setting_columns(setting: Setting) -> Row:
    """The columns of a setting's declared fields."""
    declared = {name: value for name, value in flat(setting).items() if name in COMPARISON}
    options, file = setting.strategy.options, Path(setting.strategy.file)  # which has their defaults
    own = {"options": options_text(options), "chosen_options": options_text(strategy_files.chosen(file, options))}
    task = setting.task
    of_task = {"unit": task.unit, "units_per_sample": task.units_per_sample, "metric": next(iter(task.metrics), None)}
    return declared | own | of_task


def _skipped(skipped: Skipped) -> Row:
    unknown = dict.fromkeys(("unit", "units_per_sample", "equivalent"))
    reason = "; ".join(skipped.reasons)
    return _setting_columns(skipped.setting) | unknown | {"status": "skipped", "reason": reason}


def _tell_apart(rows: Mapping[str, Row], groups: Mapping[str, list[RunResult]], skipped: Sequence[Row]) -> None:
    """Have what trains otherwise in batch, optimization or precision told as `training`, where nothing was evaluated.

    Speeds do not compare such trainings. What was skipped stands beside the same training or, without one, the first.
    """
    for same, alike in grouped(rows, lambda setting: comparable(rows[setting])).items():
        if len({training_of(groups[each][0].run) for each in alike}) == 1 or any(_evaluated(groups[x]) for x in alike):
            continue
        beside = [*map(rows.__getitem__, alike), *(row for row in skipped if comparable(row) == same)]
        labels = trainings(beside)
        for row, training in zip(beside, labels, strict=True):
            row["training"] = training if training in labels[: len(alike)] else labels[0]


def _evaluated(group: Sequence[RunResult]) -> bool:
    evaluations = [each for repeat in group if repeat.summary for each in repeat.summary.evaluations]
    return any(each.get("test_loss") is not None or each.get("test_accuracy") for each in evaluations)


def _compare(rows: Mapping[str, Row], groups: Mapping[str, list[RunResult]], margin: float) -> None:
    """Fill in each eligible setting's speed relative to the fastest that trains the same, and its standing."""
    eligible_ones = [setting for setting, row in rows.items() if eligible(row)]
    for timed in grouped(eligible_ones, lambda setting: comparable(rows[setting])).values():
        in_order = sorted(timed, key=lambda setting: -rows[setting]["samples_per_second"])
        best = first_by_pairs(in_order, lambda one, other: relative_speed(groups[one], groups[other]).value)
        for setting in timed:
            if setting == best:
                rows[setting] |= {"relative_speed": 1.0, "standing": "fastest"}
                continue
            speed_up = relative_speed(groups[setting], groups[best], len(timed) - 1)
            rows[setting] |= speed_up.columns("relative_speed") | {"standing": standing(speed_up, margin)}


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """By the speed beside the fastest, where it is compared with that; else by its mean speed."""
    speeds = row.get("relative_speed") or 0, row.get("samples_per_second") or 0
    return _CATEGORIES.index(category(row)), *(-speed for speed in speeds), str(row["strategy"])
