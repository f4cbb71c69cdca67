"""What a run's processes used of their nodes, looked at again and again while they trained. Needs no torch.

One file for each attempt and node, of lines with checksums as records have. The first line tells of the node; each
other one has the looks of some seconds. A look is [time, CPU seconds, resident bytes, a list for each GPU, CPU seconds
of all programs on the node].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from relay.run_folder.attempts import lines_of

FOLDER = "usage"  # beside the records
# What one look at a GPU gives, in this order. Fractions are from 0 to 1. `utilisation` is the part of the time in which
# any kernel ran; `sm_activity` and `tensor_activity` are the mean part of the multiprocessors, and of their tensor
# cores, that were busy (from Hopper on). `energy_joules` counts from the driver's start (from Volta on).
READINGS = (
    "utilisation", "memory_bytes", "power_watts", "sm_clock_mhz", "memory_clock_mhz", "energy_joules", "sm_activity",
    "tensor_activity",
)  # fmt: skip
Reading = list[float | None]


@dataclass(frozen=True)
class Look:
    """One look at a node: when (seconds since 1970), and what its processes and GPUs had used by then, or used then.

    `node_cpu_seconds` are those of all programs on the node; older records have none.
    """

    time: float
    cpu_seconds: float
    resident_bytes: int
    gpus: Sequence[Reading]
    node_cpu_seconds: float | None = None

    def readings(self, reading: str) -> list[float]:
        """A reading of each GPU that tells it; older records have fewer."""
        place = READINGS.index(reading)
        return [value for gpu in self.gpus if len(gpu) > place and (value := gpu[place]) is not None]

    def row(self) -> list[Any]:
        """As it is recorded."""
        gpus = [[None if value is None else round(value, 3) for value in gpu] for gpu in self.gpus]
        return [round(self.time, 3), round(self.cpu_seconds, 2), self.resident_bytes, gpus, self.node_cpu_seconds]


@dataclass(frozen=True)
class Node:
    """The looks at one node during one attempt. `cpus` are those that the run declares there."""

    host: str
    cpus: int
    seconds: float
    looks: Sequence[Look]


def mean(values: Sequence[float]) -> float | None:
    """Their mean; None without any."""
    return fmean(values) if values else None


def samples_path(work: Path, attempt: int, rank: int) -> Path:
    """Where the looks at a node lie; `rank` is that of its first process."""
    return work / FOLDER / f"attempt-{attempt:04}-{rank}.jsonl"


def read(work: Path, attempt: int) -> list[Node]:
    """The looks at each node during an attempt, without lines that are damaged or cut off."""
    return [
        node for path in sorted((work / FOLDER).glob(f"attempt-{attempt:04}-*.jsonl")) if (node := _node(path, work))
    ]


def _node(path: Path, work: Path) -> Node | None:
    first, *others = lines_of(path) or [{}]
    if first.get("run") != work.name or "cpus" not in first:
        return None
    looks = [Look(*row) for line in others for row in line.get("looks", ())]
    return Node(str(first["host"]), int(first["cpus"]), float(first["seconds"]), looks)
