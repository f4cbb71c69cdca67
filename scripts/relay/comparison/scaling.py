"""The scaling table for a proposal: what more devices of the same setting bring. Computing centres ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from relay.comparison.columns import Row, told_speed
from relay.comparison.grid import Grid
from relay.comparison.wording import number, percent
from relay.spec.labels import setting_labels

COLUMNS: dict[str, type] = {
    "task": str,
    "trained": str,  # the task, with those of its options that differ
    "strategy": str,
    "setting": str,  # in words
    "scaling": str,  # strong: the same global batch; weak: the same batch per device
    "nodes": int,
    "devices": int,
    "device": str,
    "global_batch_size": int,
    "seconds_per_epoch": float,
    "speed": float,  # in `unit` per second
    "unit": str,
    "speed_up": float,  # over the fewest devices
    "efficiency": float,  # the speed-up over the growth in devices
    "hardware": str,
    "repeats": int,
    "id": str,
}
HEADINGS = {
    "strategy": "strategy",
    "setting": "setting",
    "nodes": "nodes",
    "devices": "devices",
    "seconds_per_epoch": "seconds per epoch",
    "speed": "speed",
    "speed_up": "speed-up",
    "efficiency": "efficiency",
    "hardware": "hardware",
}


def scaling_rows(rows: Sequence[Row]) -> list[Row]:
    """Each setting that was measured on several numbers of devices, the fewest first. `rows` are the comparison's."""
    labels = {row["setting"]: label for row, label in zip(rows, setting_labels(rows), strict=True)}
    by_id = {row["setting"]: row for row in rows if row["setting"]}
    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["scaling_baseline"]:
            families.setdefault((row["scaling_baseline"], row["scaling"]), []).append(row)
    found: list[Row] = []
    for (baseline, kind), members in families.items():
        base = by_id[baseline]
        for row in [base, *sorted(members, key=devices)]:
            found.append(_row(row, base, kind, labels[row["setting"]]))
    return found


def devices(row: Mapping[str, Any]) -> int:
    """The devices of all nodes."""
    return int(row["nodes"] * row["devices_per_node"])


def _row(row: Row, base: Row, kind: str, label: str) -> Row:
    speed_up = row["samples_per_second"] / base["samples_per_second"]
    return {
        "task": row["task"],
        "trained": row["trained"],
        "strategy": row["strategy"],
        "setting": label,
        "scaling": kind,
        "nodes": row["nodes"],
        "devices": devices(row),
        "device": row["device"],
        "global_batch_size": row["global_batch_size"],
        "seconds_per_epoch": _seconds_per_epoch(row),
        "speed": told_speed(row),
        "unit": row["unit"],
        "speed_up": speed_up,
        "efficiency": speed_up * devices(base) / devices(row),
        "hardware": row["device_name"],
        "repeats": row["repeats"],
        "id": row["setting"],
    }


def _seconds_per_epoch(row: Row) -> float | None:
    """Seconds of an epoch's steps; None for a script, whose epochs nobody knows."""
    if row["steps_per_epoch"] is None or row["global_batch_size"] is None:
        return None
    return float(row["steps_per_epoch"] * row["global_batch_size"] / row["samples_per_second"])


def shown(row: Row) -> dict[str, str]:
    """A row's figures as texts, by heading."""
    texts = {
        "seconds_per_epoch": number(row["seconds_per_epoch"]),
        "speed": f"{number(row['speed'])} {row['unit']}/s",
        "speed_up": f"{row['speed_up']:.2f}",
        "efficiency": percent(row["efficiency"], 0),
    }
    return {heading: texts.get(name, str(row[name] or "")) for name, heading in HEADINGS.items()}


def markdown(rows: Sequence[Row], grids: Sequence[Grid] = ()) -> str:
    """The table in Markdown, with a heading for each kind of scaling of what is trained; then the grids."""
    parts = []
    for what, kind in dict.fromkeys((row["trained"], row["scaling"]) for row in rows):
        same = "the same global batch" if kind == "strong" else "the same batch per device"
        of = [shown(row) for row in rows if (row["trained"], row["scaling"]) == (what, kind)]
        table = tabulate(of, headers="keys", tablefmt="github", disable_numparse=True)
        parts.append(f"## {what}: {kind} scaling ({same})\n\n{table}\n")
    for grid in grids:
        table = tabulate(grid.rows, headers=grid.columns, tablefmt="github", disable_numparse=True)
        parts.append(f"## {grid.heading}\n\n{table}\n")
    return "\n".join(parts) or "No setting was measured on several numbers of devices.\n"
