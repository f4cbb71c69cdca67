"""Speed per device by batch and number of devices: the form in which computing centres publish benchmarks.

A row for each batch of a device, a column for each number of nodes and devices. A single process fills the column of
one device, because data-parallel training on one device is just that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.comparison.columns import Row, told_speed
from relay.comparison.table import eligible
from relay.comparison.wording import MISSING, number
from relay.spec.labels import counted

_DEVICES = {"cpu": "CPU share", "cuda": "GPU"}


@dataclass(frozen=True)
class Grid:
    """One grid: whose it is, its heading, the columns' headings, and the rows: the batch of a device, then speeds."""

    trained: str
    strategy: str
    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def grids(rows: Sequence[Row]) -> list[Grid]:
    """A grid for each strategy that was measured with several batches on several numbers of devices."""
    timed = [row for row in rows if eligible(row) and _batch(row) is not None]
    several: dict[Any, list[Row]] = {}
    for row in timed:
        if row["world_size"] > 1:
            several.setdefault((row["strategy"], row["options"], _alike(row)), []).append(row)
    alone = [row for row in timed if row["world_size"] == 1]
    found = []
    for (strategy, _, alike), members in several.items():
        members = [*(row for row in alone if _alike(row) == alike), *members]
        sizes = sorted({_size(row) for row in members})
        batches = sorted({_batch(row) or 0 for row in members})
        if len(sizes) > 1 and len(batches) > 1:
            found.append(_grid(strategy, members, sizes, batches))
    return found


def _grid(strategy: str, members: Sequence[Row], sizes: Sequence[tuple[int, int]], batches: Sequence[int]) -> Grid:
    cells = {(_batch(row), _size(row)): number(told_speed(row, "_per_device")) for row in members}
    row, device = members[0], _DEVICES[members[0]["device"]]
    kinds = "; ".join(sorted({str(row["device_name"]) for row in members if row["device_name"]}))
    return Grid(
        trained=row["trained"],
        strategy=strategy,
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
    batch, rest = divmod(int(row["global_batch_size"]), int(row["nodes"] * row["devices_per_node"]))
    return None if rest else batch


def _size(row: Mapping[str, Any]) -> tuple[int, int]:
    return int(row["nodes"]), int(row["devices_per_node"])


def _alike(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What all settings of a grid share."""
    names = ("trained", "device", "precision", "compile", "channels_last", "activation_checkpointing", "loader")
    return tuple(row[name] for name in (*names, "data_workers", "cpus_per_task", "threads", "epochs"))
