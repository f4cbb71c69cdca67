"""What a run's jobs took to start, for each step, between steps, and to save; from the records that they left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from relay.run_folder import run_chain


@dataclass(frozen=True, kw_only=True)
class JobTimes:
    """Times of a job, in seconds. `jobs` is how many jobs they are from; 0 where they are estimated.

    `startup_seconds` are those from the job's first line to its first step. `between_seconds_per_step` are evaluations
    and checkpoints on the way, spread over the steps. `saving_seconds` are those from the last step to the job's end.
    """

    seconds_per_step: float
    startup_seconds: float
    between_seconds_per_step: float = 0.0
    saving_seconds: float = 0.0
    jobs: int = 0


def of_run(work: Path) -> list[JobTimes]:
    """The times of each job of a run that has trained and ended. `work` is the run's folder of checkpoints."""
    times = []
    for attempt, records in run_chain.recorded(work):
        blocks = records.all_of("blocks")
        steps = sum(block[1] - block[0] for block in blocks)
        if not steps or attempt.ended is None:  # it was killed, or has trained nothing
            continue
        # Of a script, the first step is known only by what it told.
        began = next((line["first_at"] for line in records.lines if line.get("first_at")), records.began)
        last = [line["time"] for line in records.lines if line.get("blocks")][-1]
        seconds = sum(block[2] for block in blocks)
        times.append(
            JobTimes(
                seconds_per_step=seconds / steps,
                startup_seconds=max(0.0, began - attempt.started),
                between_seconds_per_step=max(0.0, last - began - seconds) / steps,
                saving_seconds=max(0.0, attempt.ended - last),
                jobs=1,
            )
        )
    return times


def mean(times: Sequence[JobTimes]) -> JobTimes:
    """The mean of each of the times: what to expect of a further job."""
    return _each(times, lambda values: sum(values) / len(values))


def slowest(times: Sequence[JobTimes]) -> JobTimes:
    """The longest of each of the times: what a further job has to have time for."""
    return _each(times, max)


def _each(times: Sequence[JobTimes], of: Callable[[Sequence[float]], float]) -> JobTimes:
    names = [each.name for each in fields(JobTimes) if each.name != "jobs"]
    return JobTimes(**{name: of([getattr(each, name) for each in times]) for name in names}, jobs=len(times))
