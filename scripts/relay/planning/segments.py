"""A run's chain: the steps at which its jobs are planned to end; how many jobs a time limit means, and what goodput."""

import math
from dataclasses import dataclass
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import read_json_or
from relay.config.blocks import Segment
from relay.run_folder.job_times import JobTimes
from relay.spec.recipe import Length

# An estimate of a job's start: the interpreter, torch, the processes, the data, the compiled kernels.
STARTUP_SECONDS = 60.0
# The part of a job's minutes that stays free for slower hours, evaluation and the last save.
SPARE_FRACTION = 0.2


@dataclass(frozen=True, kw_only=True)
class ChainForecast:
    """A training as a chain of jobs of at most `limit_minutes`. The seconds are those of all jobs together."""

    limit_minutes: float
    jobs: int
    steps_in_a_job: int
    startup_seconds: float
    useful_seconds: float
    between_seconds: float
    saving_seconds: float

    @property
    def allocated_seconds(self) -> float:
        """What all jobs take together, without the queue."""
        return self.startup_seconds + self.useful_seconds + self.between_seconds + self.saving_seconds


@dataclass(frozen=True)
class TooShort:
    """A time limit in which a job cannot finish a step. `least_minutes` is the shortest limit in which it can."""

    limit_minutes: float
    least_minutes: float


def ends(total_steps: int, steps_in_a_job: int) -> list[int]:
    """The steps at which the jobs end, ascending. The last one is `total_steps`; the last job may be shorter."""
    return [*range(steps_in_a_job, total_steps, steps_in_a_job), total_steps]


def steps_in_a_job(segment: Segment | None, length: Length, seconds_per_step: float | None) -> int:
    """The number of steps in a job, at least 1. `seconds_per_step` is needed only for a segment in minutes.

    Raises UserError where that speed is missing, or where the minutes are too few for one step.
    """
    if segment is None:
        return length.total_steps
    if segment.steps is not None:
        return segment.steps
    if segment.epochs is not None:
        return max(1, round(segment.epochs * length.steps_per_epoch))
    assert segment.minutes is not None  # the config allows exactly one of the three
    if seconds_per_step is None:
        raise UserError(
            f"segment.minutes: {segment.minutes:g} needs a measured speed, and there is none yet: run "
            "'snakemake plan' first, or give segment.steps or segment.epochs"
        )
    times = JobTimes(seconds_per_step=seconds_per_step, startup_seconds=STARTUP_SECONDS)
    steps = steps_in(times, segment.minutes)
    if steps < 1:
        raise UserError(
            f"config: segment.minutes: {segment.minutes:g} is too short for one step. A job's minutes have to hold "
            f"{STARTUP_SECONDS:g} seconds to start and a step of {seconds_per_step:.3g} seconds, and a fifth of them "
            f"stays free; allowed: at least {math.ceil(10 * least_minutes(times)) / 10:g}"
        )
    return steps


def read_speeds(results: Path) -> dict[str, float]:
    """Measured seconds per step by setting's id, from the files of `snakemake plan`; a damaged one is made anew."""
    speeds = {}
    for path in (results / "speeds").glob("*.json"):
        content = read_json_or(path, None)
        seconds = content.get("seconds_per_step") if isinstance(content, dict) else None
        if isinstance(seconds, int | float) and 0 < seconds < math.inf:
            speeds[path.stem] = float(seconds)
    return speeds


def steps_in(times: JobTimes, limit_minutes: float) -> int:
    """The number of steps that a job of `limit_minutes` has time for, with what stays free of them; or 0."""
    seconds = limit_minutes * 60 * (1 - SPARE_FRACTION) - times.startup_seconds - times.saving_seconds
    return max(0, math.floor(seconds / (times.seconds_per_step + times.between_seconds_per_step)))


def least_minutes(times: JobTimes) -> float:
    """The shortest time limit in which a job has time for a step."""
    around = times.startup_seconds + times.saving_seconds
    return (around + times.seconds_per_step + times.between_seconds_per_step) / (1 - SPARE_FRACTION) / 60


def forecast(times: JobTimes, total_steps: int, limit_minutes: float) -> ChainForecast | TooShort:
    """The chain of a training of `total_steps` in jobs of `limit_minutes`, of which a part stays free."""
    steps = steps_in(times, limit_minutes)
    if steps < 1:
        return TooShort(limit_minutes, least_minutes(times))
    jobs = math.ceil(total_steps / steps)
    return ChainForecast(
        limit_minutes=limit_minutes,
        jobs=jobs,
        steps_in_a_job=min(steps, total_steps),
        startup_seconds=jobs * times.startup_seconds,
        useful_seconds=total_steps * times.seconds_per_step,
        between_seconds=total_steps * times.between_seconds_per_step,
        saving_seconds=jobs * times.saving_seconds,
    )
