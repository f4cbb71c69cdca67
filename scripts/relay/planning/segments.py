"""A run's chain: the steps at which its jobs are planned to end."""

from __future__ import annotations

import json
import math
from pathlib import Path

from relay.base.errors import UserError
from relay.planning.chain_lengths import SPARE_FRACTION, STARTUP_SECONDS, least_minutes, steps_in
from relay.planning.config_blocks import Segment
from relay.run_folder.job_times import JobTimes


def ends(total_steps: int, steps_in_a_job: int) -> list[int]:
    """The steps at which the jobs end, ascending. The last one is `total_steps`; the last job may be shorter."""
    return [*range(steps_in_a_job, total_steps, steps_in_a_job), total_steps]


def steps_in_a_job(
    segment: Segment | None, *, steps_per_epoch: int, total_steps: int, seconds_per_step: float | None
) -> int:
    """The number of steps in a job, at least 1. `seconds_per_step` is needed only for a segment in minutes.

    Raises UserError where that speed is missing, or where the minutes are too few for one step.
    """
    if segment is None:
        return total_steps
    if segment.steps is not None:
        return segment.steps
    if segment.epochs is not None:
        return max(1, round(segment.epochs * steps_per_epoch))
    assert segment.minutes is not None  # the config allows exactly one of the three
    if seconds_per_step is None:
        raise UserError(
            f"segment.minutes: {segment.minutes:g} needs a measured speed, and there is none yet: run "
            "'snakemake plan' first, or give segment.steps or segment.epochs"
        )
    return steps_per_job(segment.minutes, seconds_per_step)


def steps_per_job(
    minutes: float,
    seconds_per_step: float,
    startup_seconds: float = STARTUP_SECONDS,
    margin: float = SPARE_FRACTION,
) -> int:
    """The number of steps that fit into a job of `minutes`, when the fraction `margin` of them stays free.

    Raises UserError where no step fits.
    """
    times = JobTimes(seconds_per_step=seconds_per_step, startup_seconds=startup_seconds)
    steps = steps_in(times, minutes, margin)
    if steps < 1:
        raise UserError(
            f"segment.minutes: {minutes:g} leaves no time for a step of {seconds_per_step:g} seconds; "
            f"allowed: at least {math.ceil(10 * least_minutes(times, margin)) / 10:g}"
        )
    return steps


def read_speeds(path: Path) -> dict[str, float]:
    """Measured seconds per step by setting's id, from the file of `snakemake plan`; empty without that file.

    Raises UserError for a damaged file.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        speeds = {str(setting): float(seconds) for setting, seconds in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        raise UserError(f"{path}: damaged; delete it and run 'snakemake plan' again") from None
    for setting, seconds in speeds.items():
        if not (seconds > 0 and math.isfinite(seconds)):
            raise UserError(f"{path}: {setting}: {seconds:g} is not allowed; allowed: seconds greater than 0")
    return speeds
