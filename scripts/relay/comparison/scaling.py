"""What more devices of the same setting bring: the efficiency, the table for a proposal, and the grid by batch.

Computing centres ask for the table, and publish grids: a row for each batch of a device, a column for each number of
nodes and devices. A single process fills the column of one device, because data-parallel training on one device is
just that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relay.base.grouped import grouped
from relay.comparison.columns import MISSING, SCALING, Row, eligible, number, percent, relative, speed_in_unit
from relay.comparison.inputs import RunResult
from relay.comparison.setting_result import relative_speed
from relay.spec.labels import comparable, counted, flat, setting_labels
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
    copied = {name: row[name] for name in SCALING if name in row}
    return copied | {
        "setting": label,
        "scaling": kind,
        "devices": devices(row),
        "seconds_per_epoch": _seconds_per_epoch(row, speed),
        "speed": speed_in_unit(row | {"samples_per_second": speed}),
        "speed_up": speed_up,
        "efficiency": efficiency,
        "hardware": row["device_name"],
        "id": row["setting"],
        "baseline": base["setting"],  # told in no table
    }


def _seconds_per_epoch(row: Row, speed: float) -> float | None:
    """Seconds of an epoch's steps; None for a script, whose epochs nobody knows."""
    if row["steps_per_epoch"] is None or row["global_batch_size"] is None:
        return None
    return float(row["steps_per_epoch"] * row["global_batch_size"] / speed)


def shown(row: Row) -> dict[str, str]:
    """A row's figures as texts, by heading."""
    texts = {name: str(row[name] or "") for name in SHOWN} | {
        "seconds_per_epoch": number(row["seconds_per_epoch"]),
        "speed": f"{number(row['speed'])} {row['unit']}/s",
        "speed_up": relative(row["speed_up"]),
        "efficiency": percent(row["efficiency"], 0),
    }
    return {"speed-up" if name == "speed_up" else name.replace("_", " "): text for name, text in texts.items()}


_DEVICES = {"cpu": "CPU share", "cuda": "GPU"}


@dataclass(frozen=True)
class Grid:
    """A grid: its heading, the columns' headings, and the rows: the batch of a device, then speeds."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def grids(rows: Sequence[Row]) -> list[Grid]:
    """A grid for each strategy of which several batches were measured, and one of them on several numbers of devices.

    Its own single process comes before another strategy's.
    """
    timed = [row for row in rows if eligible(row) and _batch(row) is not None]
    several = grouped(
        (row for row in timed if row["world_size"] > 1), lambda row: (row["strategy"], row["options"], _alike(row))
    )
    alone = [row for row in timed if row["world_size"] == 1]
    tables = []
    for (strategy, _, alike), members in several.items():
        others = [row for row in alone if _alike(row) == alike]
        own = [row for row in others if row["strategy"] == strategy]
        members = [*(own or others), *members]
        sizes = sorted({_size(row) for row in members})
        batches = sorted({_batch(row) or 0 for row in members})
        cells = {(_batch(row), _size(row)) for row in members}
        if len(batches) > 1 and len(cells) > len(batches):  # else no row has two sizes to compare
            tables.append(_grid(strategy, members, sizes, batches))
    return tables


def _grid(strategy: str, members: Sequence[Row], sizes: Sequence[tuple[int, int]], batches: Sequence[int]) -> Grid:
    cells = {(_batch(row), _size(row)): number(speed_in_unit(row, "_per_device")) for row in members}
    row, device = members[0], _DEVICES[members[0]["device"]]
    kinds = "; ".join(sorted({str(row["device_name"]) for row in members if row["device_name"]}))
    return Grid(
        heading=f"{row['trained']}, {strategy}: {row['unit']} per second and {device}"
        + (f" ({kinds})" if kinds else ""),
        columns=[
            f"batch of a {device}",
            *(f"{counted(nodes, 'node')}, {counted(nodes * each, device)}" for nodes, each in sizes),
        ],
        rows=[[str(batch), *(cells.get((batch, size), MISSING) for size in sizes)] for batch in batches],
    )


def _batch(row: Mapping[str, Any]) -> int | None:
    """The samples of a device in a step; None where they are no whole number."""
    if row["global_batch_size"] is None:  # nobody has told that of a script
        return None
    batch, rest = divmod(int(row["global_batch_size"]), devices(row))
    return None if rest else batch


def _size(row: Mapping[str, Any]) -> tuple[int, int]:
    return int(row["nodes"]), int(row["devices_per_node"])


def _alike(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What all settings of a grid share."""
    names = ("trained", "device", "precision", "compile", "channels_last", "activation_checkpointing", "loader")
    return tuple(row[name] for name in (*names, "data_workers", "cpus_per_task", "threads", "epochs"))


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
    alike = all(_without_size(smaller)[name] == value for name, value in _without_size(larger).items())
    starters = smaller.shape.launcher, larger.shape.launcher
    over_nodes = starters == ("direct", "torchrun") and larger.shape.nodes > 1
    return alike and (starters[0] == starters[1] or smaller.shape.world_size == 1 or over_nodes)


def _without_size(run: Run) -> Row:
    """The values that must be equal for a scaling efficiency: all but the run's size and what follows from it."""
    shape = replace(
        run.shape, nodes=1, devices_per_node=1, processes_per_device=1, devices_per_process=1, launcher="none"
    )
    return {
        "task": comparable(flat(run)),
        "strategy": replace(run.strategy, file=""),
        "shape": shape,
        "place": run.place,
        "computation": run.computation,
        "feeding": run.feeding,
        "scaling": run.batch.learning_rate_scaling,
        "epochs": run.length.epochs,
    }
