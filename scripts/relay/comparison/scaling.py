"""What more devices of the same setting bring: the efficiency, and the table that computing centres ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.base.grouped import grouped
from relay.comparison.columns import SCALING, Row, eligible, number, percent, relative, speed_in_unit
from relay.comparison.inputs import RunResult
from relay.comparison.setting_result import relative_speed
from relay.spec.labels import comparable, flat, setting_labels
from relay.spec.run import Run

SHOWN = ("strategy", "setting", "nodes", "devices", "seconds_per_epoch", "speed", "speed_up", "efficiency", "hardware")


def scaling_rows(rows: Sequence[Row]) -> list[Row]:
    """Each setting that was measured on several numbers of devices, the fewest first. `rows` are the comparison's."""
    labels = {row["setting"]: label for row, label in zip(rows, setting_labels(rows), strict=True)}
    by_id = {row["setting"]: row for row in rows if row["setting"]}
    larger = [row for row in rows if row["scaling_baseline"]]
    families = grouped(larger, lambda row: (row["scaling_baseline"], row["scaling"]))
    scaled: list[Row] = []
    for (baseline, kind), members in families.items():
        base = by_id[baseline]
        for row in [base, *sorted(members, key=devices)]:
            scaled.append(_row(row, base, kind, labels[row["setting"]]))
    return scaled


def devices(row: Mapping[str, Any]) -> int:
    """The devices of all nodes."""
    return int(row["nodes"] * row["devices_per_node"])


def _row(row: Row, base: Row, kind: str, label: str) -> Row:
    efficiency = 1.0 if row is base else row["scaling_efficiency"]
    speed_up = efficiency * devices(row) / devices(base)
    speed = speed_up * base["samples_per_second"]  # beside the fewest devices, as all of the table
    steps, batch = row["steps_per_epoch"], row["global_batch_size"]  # nobody knows a script's epochs
    copied = {name: row[name] for name in SCALING if name in row}
    return copied | {
        "setting": label,
        "scaling": kind,
        "devices": devices(row),
        "seconds_per_epoch": None if None in (steps, batch) else steps * batch / speed,
        "speed": speed_in_unit(row | {"samples_per_second": speed}),
        "speed_up": speed_up,
        "efficiency": efficiency,
        "hardware": row["device_name"],
        "id": row["setting"],
        "baseline": base["setting"],  # told in no table
    }


def shown(row: Row) -> dict[str, str]:
    """A row's figures as texts, by heading."""
    texts = {name: str(row[name] or "") for name in SHOWN} | {
        "seconds_per_epoch": number(row["seconds_per_epoch"]),
        "speed": f"{number(row['speed'])} {row['unit']}/s",
        "speed_up": relative(row["speed_up"]),
        "efficiency": percent(row["efficiency"], 0),
    }
    return {"speed-up" if name == "speed_up" else name.replace("_", " "): text for name, text in texts.items()}


def scale(rows: Mapping[str, Row], groups: Mapping[str, list[RunResult]]) -> None:
    """Fill in the scaling efficiency of eligible settings. Each is compared with itself on the fewest devices.

    Everything but the size is equal, and so is the global batch (strong scaling). Where that was not measured on fewer
    devices, the batch per device is equal (weak scaling).
    """
    runs = [groups[setting][0].run for setting, row in rows.items() if eligible(row)]
    for run in runs:
        devices, batch = run.shape.devices, run.batch.global_batch_size
        smaller = [other for other in runs if other.shape.devices < devices and _same(other, run)]
        strong = [other for other in smaller if other.batch.global_batch_size == batch]
        weak = [other for other in smaller if other.batch.global_batch_size * devices == batch * other.shape.devices]
        if not strong and not weak:
            continue
        base = min(strong or weak, key=lambda other: (other.shape.devices, other.shape.nodes))
        speed_up = relative_speed(groups[run.setting_id], groups[base.setting_id]).value
        rows[run.setting_id] |= {
            "scaling_efficiency": speed_up * base.shape.devices / devices,
            "scaling": "strong" if strong else "weak",
            "scaling_baseline_devices": base.shape.devices,
            "scaling_baseline": base.setting_id,
        }


def _same(smaller: Run, larger: Run) -> bool:
    """Whether two runs differ in size only.

    A single process needs no launcher. `direct` works on one node only: torchrun takes its place on several.
    """
    starters = smaller.shape.launcher, larger.shape.launcher
    over_nodes = starters == ("direct", "torchrun") and larger.shape.nodes > 1
    fits = starters[0] == starters[1] or smaller.shape.world_size == 1 or over_nodes
    return fits and _without_size(smaller) == _without_size(larger)


def _without_size(run: Run) -> tuple[Any, ...]:
    """The values that must be equal for a scaling efficiency: all but the run's size and what follows from it."""
    one = replace(run.shape, nodes=1, devices_per_node=1, processes_per_device=1, devices_per_process=1)
    shape, strategy = replace(one, launcher="none"), replace(run.strategy, file="")
    task, batch, length = comparable(flat(run)), run.batch.learning_rate_scaling, run.length.epochs
    return task, strategy, shape, run.place, run.computation, run.feeding, batch, length
