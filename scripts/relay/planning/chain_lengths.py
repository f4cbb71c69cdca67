"""How many jobs a training needs under a time limit, and what goodput to expect: a calculation, without any file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relay.run_folder.job_times import JobTimes

# An estimate of a job's start: the interpreter, torch, the processes, the data, the compiled kernels.
STARTUP_SECONDS = 60.0
# The part of a job's minutes that stays free for slower hours, evaluation and the last save.
SPARE_FRACTION = 0.2


@dataclass(frozen=True, kw_only=True)
class Chain:
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

    @property
    def goodput(self) -> float:
        """The part of the allocated time in which steps are trained."""
        return self.useful_seconds / self.allocated_seconds


@dataclass(frozen=True)
class TooShort:
    """A time limit in which a job cannot finish a step. `least_minutes` is the shortest limit in which it can."""

    limit_minutes: float
    least_minutes: float


def steps_in(times: JobTimes, limit_minutes: float, spare: float = SPARE_FRACTION) -> int:
    """The number of steps that a job of `limit_minutes` has time for, when the fraction `spare` stays free; or 0."""
    seconds = limit_minutes * 60 * (1 - spare) - times.startup_seconds - times.saving_seconds
    return max(0, math.floor(seconds / (times.seconds_per_step + times.between_seconds_per_step)))


def least_minutes(times: JobTimes, spare: float = SPARE_FRACTION) -> float:
    """The shortest time limit in which a job has time for a step."""
    around = times.startup_seconds + times.saving_seconds
    return (around + times.seconds_per_step + times.between_seconds_per_step) / (1 - spare) / 60


def chain(times: JobTimes, total_steps: int, limit_minutes: float, spare: float = SPARE_FRACTION) -> Chain | TooShort:
    """The chain of a training of `total_steps` in jobs of `limit_minutes`, of which the fraction `spare` stays free."""
    steps = steps_in(times, limit_minutes, spare)
    if steps < 1:
        return TooShort(limit_minutes, least_minutes(times, spare))
    jobs = math.ceil(total_steps / steps)
    return Chain(
        limit_minutes=limit_minutes,
        jobs=jobs,
        steps_in_a_job=min(steps, total_steps),
        startup_seconds=jobs * times.startup_seconds,
        useful_seconds=total_steps * times.seconds_per_step,
        between_seconds=total_steps * times.between_seconds_per_step,
        saving_seconds=jobs * times.saving_seconds,
    )
