"""The time of a whole training, as jobs do it: its steps, and what they need besides. By that, settings are ranked.

Beside its steps a run takes its starts (imports, compilation, loading) once for each job, evaluations and saves.
The latter two grow with the length of the training, and so do the starts of a chain's jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.spec.run import Run


def training_seconds(run: Run, summary: Mapping[str, Any]) -> float:
    """The seconds of all the run's steps: as recorded, or by the measured speed where that is more."""
    if run.strategy.script:  # how many steps it has is not known
        return float(summary["train_seconds"] or 0.0)
    samples = run.length.total_steps * run.batch.global_batch_size
    by_speed = samples / summary["samples_per_second"] if summary.get("samples_per_second") else 0.0
    return max(float(summary["train_seconds"] or 0.0), by_speed)


def outside_seconds(summary: Mapping[str, Any], times: float = 1) -> float:
    """The seconds beside the steps of a training that is so many times as long as the run."""
    whole = max(0.0, float(summary["allocated_seconds"]) - (summary["train_seconds"] or 0.0))
    once = once_seconds(summary)
    return once + times * (whole - once)


def once_seconds(summary: Mapping[str, Any]) -> float:
    """The seconds that a longer training does not take again: the start of a single job."""
    whole = max(0.0, float(summary["allocated_seconds"]) - (summary["train_seconds"] or 0.0))
    start = sum(summary.get(part) or 0.0 for part in ("startup_seconds", "loading_seconds"))
    return min(start, whole) if summary["attempts"] == 1 else 0.0


def whole_seconds(run: Run, summary: Mapping[str, Any], times: float = 1) -> float:
    """The seconds of the whole training, if it is so many times as long as the run."""
    return times * training_seconds(run, summary) + outside_seconds(summary, times)
