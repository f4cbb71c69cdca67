"""What jobs need to ask for, by what was measured: the memory of a node, and the margins of memory and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from relay.spec.job import Job
from relay.spec.run import Run

MARGIN = 0.25  # above what was measured, for memory and for time
STARTERS_MB = 512  # a node's memory for what starts the processes: this project's Python, torchrun, srun
START_SECONDS = 60.0  # for Slurm, and for a node that is slower to start than the measured ones
LEAST_MINUTES = 2
MEBIBYTE = 2**20


def memory(run: Run, summaries: Sequence[Mapping[str, Any]], job: Job | None) -> tuple[int | None, str]:
    """A node's memory in MB, and why. At most as much as the measured jobs had, which was enough."""
    if job is not None and job.memory_mb is None:
        return None, "this partition gives memory by itself"
    peaks = [each["peak_main_memory_bytes"] for each in summaries if each.get("peak_main_memory_bytes")]
    if not peaks:
        why = "as the measured jobs had, because their peak in main memory was not recorded"
        return (job.memory_mb, why) if job else (None, "not measured: ask for what your cluster gives by default")
    held_mb, measured = _held(run, summaries, max(peaks) / MEBIBYTE)
    needed = math.ceil((held_mb + STARTERS_MB) * (1 + MARGIN))
    why = f"{measured}, {STARTERS_MB} MiB for what starts them, and {100 * MARGIN:.0f} % more as a margin"
    if job is not None and job.memory_mb is not None and needed > job.memory_mb:
        return job.memory_mb, f"as the measured jobs had, which was enough; the bound is {needed} MiB: {why}"
    return needed, why


def _held(run: Run, summaries: Sequence[Mapping[str, Any]], peak_mb: float) -> tuple[float, str]:
    """What the processes of a node hold in MiB, data workers included, and how it is known. `peak_mb`: of a process."""
    processes, workers = run.shape.processes_per_node, run.feeding.data_workers
    if run.strategy.script:  # which starts what it likes
        node_mb = max((each.get("peak_node_memory_bytes") or 0 for each in summaries), default=0) / MEBIBYTE
        if node_mb > processes * peak_mb:
            return node_mb, f"{node_mb:.0f} MiB measured at a node's peak, with all that the command starts"
    alone = f"{peak_mb:.0f} MiB measured at the peak of a process × {processes}"
    if not workers:
        return processes * peak_mb, alone
    node_mb = max((each.get("peak_node_memory_bytes") or 0 for each in summaries), default=0) / MEBIBYTE
    if node_mb > processes * peak_mb:  # else the looks at the node have missed even the processes' own peak
        return node_mb, f"{node_mb:.0f} MiB measured at a node's peak, with its data workers"
    return processes * (1 + workers) * peak_mb, f"{alone} × {1 + workers} for its data workers, as much each at most"
