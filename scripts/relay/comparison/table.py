"""The two tables: one of all runs, and one of all settings, with repeats combined and compared with the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relay.comparison.columns import COMPARISON, MEASURED, POOLED, Row, category, eligible
from relay.comparison.inputs import Inputs, Record, Skipped
from relay.comparison.measured import by_setting, paired, rounds_of
from relay.comparison.no_result import Status, summed_up
from relay.comparison.objections import by_repeat, differing, mixed, outliers, proven, refusals
from relay.comparison.scaling import scale
from relay.comparison.statistics import geometric_mean, ratio, standing
from relay.spec import strategy_files
from relay.spec.labels import comparable, flat, options_text, trained, training_of, trainings
from relay.spec.run import Setting

_CATEGORIES = ("done", "dropped", "struck out", "failed", "skipped")


def run_rows(inputs: Inputs) -> list[Row]:
    """One row per run, for `runs.csv`."""
    return [_run_row(record) for record in inputs.records]


def comparison_rows(inputs: Inputs) -> list[Row]:
    """One row per setting, for `comparison.csv`. Of what is trained, the fastest comes first, and skipped ones last."""
    groups = by_setting(inputs.records)
    rows = {setting: _pooled(group) for setting, group in groups.items()}
    skipped = [_skipped(entry) for entry in inputs.skipped]
    _tell_apart(rows, groups, skipped)
    _compare(rows, groups, inputs.margin)
    scale(rows, groups)
    done = {setting: groups[setting] for setting, row in rows.items() if category(row) == "done"}
    warnings_by_kind = (outliers(done), mixed(groups), differing(done))
    for setting, row in rows.items():
        row["warning"] = "; ".join(warnings[setting] for warnings in warnings_by_kind if setting in warnings) or None
    everything = [*rows.values(), *skipped]
    for row in everything:
        row["margin"] = inputs.margin
    places: dict[str, int] = {}
    for row, what in zip(everything, trained(everything), strict=True):
        row["trained"] = what
        places.setdefault(what, len(places))
    complete = [{name: row.get(name) for name in COMPARISON} for row in everything]
    return sorted(complete, key=lambda row: (str(row["task"]), places[row["trained"]], *_order(row)))


def _run_row(record: Record) -> Row:
    run, summary = record.run, record.summary or {}
    copied = {key: value for key, value in summary.items() if not isinstance(value, (list, dict))}
    copied |= {"samples_per_second": record.speed}
    return copied | {
        "run": run.id,
        "setting": run.setting_id,
        "task": run.task.name,
        "strategy": run.strategy.name,
        "repeat": run.repeat,
        "seed": run.seed,
        "device": run.shape.device,
        "segments": record.segments,
        "status": "done" if record.summary else "failed",
        "reason": record.error or _spot_check(record, "failed") or _remark(record),
        "spot_check": record.spot_check.status if record.summary else None,
        "hosts": " ".join(summary.get("hosts", [])),
        "versions": versions_text(summary.get("versions", {})),
    }


def versions_text(versions: Mapping[str, Any]) -> str:
    """Versions as a text, such as 'python 3.11.2; torch 2.13.0'. What has no version (CUDA on CPUs) is left out."""
    return "; ".join(f"{name} {version}" for name, version in sorted(versions.items()) if version)


def _remark(record: Record) -> str:
    """A note on a run that is done: its own, or why it has no speed; '' without any."""
    if record.summary is None:
        return ""
    reason = str(record.summary.get("reason") or "")
    return reason if reason or record.speed else "not timed: no step after the warm-up was measured"


def _spot_check(record: Record, status: Status) -> str:
    """What a finished run's spot check has to tell, where it ended so; else ''."""
    check, what = record.spot_check, "not spot-checked" if status == "not checked" else "spot check failed"
    return f"{what}: {check.reason}" if record.summary and check.status == status else ""


def _pooled(group: Sequence[Record]) -> Row:
    run, first = group[0].run, group[0]
    verdict = first.verdict if proven(group) else None  # that of other code is not these runs'
    finished = [record.summary for record in group if record.summary]
    measured = list(rounds_of(group).values())
    row: Row = _setting_columns(run, Path(run.strategy.file)) | {
        "repeats": len(finished),
        "repeats_planned": len(group),
        "segments": max(record.segments for record in group),
        "gate": first.gate,
        "setting": run.setting_id,
        "max_loss_difference": verdict["max_loss_difference"] if verdict else None,
        "goodput": _goodput(finished),
        **_measured(finished),
        "hosts": " ".join(sorted({host for summary in finished for host in summary["hosts"]})) or None,
    }
    if measured:
        speed = geometric_mean(measured)
        row |= {
            "samples_per_second": speed.value,
            "samples_per_second_low": speed.low,
            "samples_per_second_high": speed.high,
            "samples_per_second_per_device": speed.value / run.shape.devices,
        }
    ungated = [] if first.verdict else ["the equivalence gate gave no verdict"]
    refused = [] if ungated else [*refusals(group), *by_repeat(group, lambda record: _spot_check(record, "failed"))]
    faults = [*ungated, *by_repeat(group, lambda record: _error(record, refused))]
    unproven = (verdict or {}).get("unprovable")
    noted = unproven and not run.strategy.script  # of scripts it is known, and stands in the answer
    unproven_note = [f"measured, not proven: because {unproven}"] if noted else []
    lossy = verdict.get("lossy") if verdict else None
    lossy_note = [f"{lossy} is lossy: its update is only bounded by the gate"] if lossy else []
    unchecked = by_repeat(group, lambda record: _spot_check(record, "not checked"))
    dropped = [first.dropped] if first.dropped and not (refused or faults) else []
    reasons = [*refused, *faults, *dropped, *unproven_note, *by_repeat(group, _remark), *lossy_note, *unchecked]
    return row | {
        "spot_checks": summed_up(record.spot_check for record in group if record.summary),
        "lossy": lossy,
        "status": "failed" if faults else "dropped" if dropped else "done",
        "equivalent": None if ungated or (unproven and not refused) else not refused,
        "unproven": None if refused else unproven,
        "reason": "; ".join(reasons) or None,
    }


def _error(record: Record, refused: Sequence[str]) -> str:
    """The run's error; only that there is one where the gate's problems have its words already."""
    return "failed likewise" if any(record.error and record.error in problem for problem in refused) else record.error


def _setting_columns(setting: Setting, file: Path) -> Row:
    """The columns of a setting's declared fields. `file` is the strategy's, which has the defaults of its options."""
    declared = {name: value for name, value in flat(setting).items() if name in COMPARISON}
    options = setting.strategy.options
    own = {"options": options_text(options), "chosen_options": options_text(strategy_files.chosen(file, options))}
    task = setting.task
    of_task = {"unit": task.unit, "units_per_sample": task.units_per_sample, "metric": next(iter(task.metrics), None)}
    return declared | own | of_task


def _measured(finished: Sequence[Mapping[str, Any]]) -> Row:
    """The figures of the finished repeats, combined; None where no repeat has the figure."""
    row: Row = {}
    for name, column in MEASURED.items():
        if column.pooled:
            values = [summary[name] for summary in finished if summary.get(name) is not None]
            row[name] = POOLED[column.pooled](values) if values else None
    return row


def _goodput(summaries: Sequence[Mapping[str, Any]]) -> float | None:
    """Time on steps that were kept, divided by the allocated time, over all repeats; longer repeats weigh more."""
    timed = [each for each in summaries if each["goodput"] is not None and each["allocated_seconds"]]
    allocated = math.fsum(each["allocated_seconds"] for each in timed)
    return math.fsum(each["goodput"] * each["allocated_seconds"] for each in timed) / allocated if timed else None


def _skipped(skipped: Skipped) -> Row:
    own = _setting_columns(skipped.setting, Path(skipped.setting.strategy.file))
    own |= dict.fromkeys(("unit", "units_per_sample"))
    return own | {"status": "skipped", "equivalent": None, "reason": "; ".join(skipped.reasons)}


def _tell_apart(rows: Mapping[str, Row], groups: Mapping[str, list[Record]], skipped: Sequence[Row]) -> None:
    """Have what trains otherwise in batch, optimization or precision told as `training`, where nothing was evaluated.

    Speeds do not compare such trainings. What was skipped stands beside the same training or, without one, the first.
    """
    for same in {comparable(row) for row in rows.values()}:
        alike = [setting for setting, row in rows.items() if comparable(row) == same]
        if len({training_of(groups[each][0].run) for each in alike}) == 1 or any(_evaluated(groups[x]) for x in alike):
            continue
        beside = [*map(rows.__getitem__, alike), *(row for row in skipped if comparable(row) == same)]
        labels = trainings(beside)
        for row, training in zip(beside, labels, strict=True):
            row["training"] = training if training in labels[: len(alike)] else labels[0]


def _evaluated(group: Sequence[Record]) -> bool:
    evaluations = [each for record in group if record.summary for each in record.summary["evaluations"]]
    return any(each.get("test_loss") is not None or each.get("test_accuracy") for each in evaluations)


def _compare(rows: Mapping[str, Row], groups: Mapping[str, list[Record]], margin: float) -> None:
    """Fill in each eligible setting's speed relative to the fastest that trains the same, and its standing."""
    for same in {comparable(row) for row in rows.values()}:
        timed = [setting for setting, row in rows.items() if comparable(row) == same and eligible(row)]
        if not timed:
            continue
        best = max(timed, key=lambda setting: rows[setting]["samples_per_second"])
        for setting in timed:
            if setting == best:
                rows[setting] |= {"relative_speed": 1.0, "standing": "fastest"}
                continue
            its, top = groups[setting], groups[best]
            relative = ratio(*paired(rounds_of(its), its, rounds_of(top), top), len(timed) - 1)
            rows[setting] |= {
                "relative_speed": relative.value,
                "relative_speed_low": relative.low,
                "relative_speed_high": relative.high,
                "standing": standing(relative, margin),
            }


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return _CATEGORIES.index(category(row)), -(row.get("samples_per_second") or 0), str(row["strategy"])
