"""What the time of a run's jobs went to (goodput, split), and what a further job takes: from their records.

The parts of an attempt add up to the time that it held its job. `startup` ends when the processes are started, on nodes
that are prepared; `loading` with the first line of their records. What the first evaluation compiles is loading, too.
`repeated` are steps that a later attempt did again, those that a kill took before they were recorded among them. `idle`
is what is in no other part: most of it the end of the job. The wait in the queue is before all of this.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import fsum
from pathlib import Path
from typing import Any

from relay.run_folder import run_chain
from relay.run_folder.attempts import FIRST_EVALUATION, Records
from relay.run_folder.run_chain import Attempt
from relay.run_folder.summary import JobTime

PARTS = ("startup", "loading", "steps", "repeated", "evaluation", "saving", "idle")


def spent(attempt: Attempt, records: Records, counted: float) -> JobTime:
    """What the time of an attempt's job went to.

    `counted` are the seconds of its steps that count. Of a job that was killed whole, its time ends with its last sign
    of life. No less is held than was trained: a clock that was set back says less.
    """
    began = min(attempt.job_started or attempt.started, attempt.started)
    ended = max(attempt.ended or (records.last_at if records else attempt.started), began)
    trained = fsum(block[2] for block in records.all_of("blocks"))
    first = records.began if records else ended
    launched = records.lines[0].get("launched", attempt.started) if records else attempt.started
    # Between the last record of one that was killed and its end there are steps of which no record tells.
    lost = max(0.0, ended - records.last_at) if records and not records.end else 0.0
    parts = {
        "startup": max(0.0, launched - began),
        "loading": max(0.0, first - launched) + records.compiled,
        "steps": counted,
        "repeated": max(0.0, trained - counted) + lost,
        "evaluation": records.paused("evaluation") + records.paused(FIRST_EVALUATION) - records.compiled,
        "saving": records.paused("saving"),
    }
    parts["idle"] = max(0.0, ended - began - fsum(parts.values()))
    submitted = attempt.submitted if attempt.job_started is not None else None
    queued = None if submitted is None else max(0.0, began - submitted)
    last = int(records.end.get("end", records.start + len(records.losses))) if records else None
    return JobTime(attempt=attempt.number, job=attempt.job, last=last, queued=queued, parts=parts)


def split(jobs: Sequence[JobTime]) -> dict[str, Any]:
    """What a summary has of it: the seconds of each part over all attempts, and the `jobs` one by one."""
    queued = [each.queued for each in jobs if each.queued is not None]
    totals = {f"{part}_seconds": round(fsum(each.parts[part] for each in jobs), 6) for part in PARTS if part != "steps"}
    return {"queue_seconds": fsum(queued) if queued else None, **totals, "jobs": tuple(jobs)}


# What a further job takes


@dataclass(frozen=True, kw_only=True)
class JobTimes:
    """Times of a job, in seconds. `jobs` is how many jobs they are from; 0 where they are estimated.

    `startup_seconds` are those from the job's first line to its first step, and of what it compiles later.
    `between_seconds_per_step` are evaluations and checkpoints on the way, spread over the steps. `saving_seconds` are
    those from the last step to the job's end.
    """

    seconds_per_step: float
    startup_seconds: float
    between_seconds_per_step: float = 0.0
    saving_seconds: float = 0.0
    jobs: int = 0


def _per_step(blocks: Sequence[Sequence[float]]) -> float:
    """Mean seconds of the steps of blocks [before, last step, seconds]."""
    return sum(block[2] for block in blocks) / sum(block[1] - block[0] for block in blocks)


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
        # Each job compiles anew: what its first steps and its first evaluation took longer counts as its start. A later
        # step may be slower than the first ones, such as a script's last one, with its save.
        per_step = min(_per_step(blocks), _per_step(blocks[1:] or blocks))
        slower = seconds - steps * per_step
        times.append(
            JobTimes(
                seconds_per_step=per_step,
                startup_seconds=max(0.0, began - attempt.started) + slower + records.compiled,
                between_seconds_per_step=max(0.0, last - began - seconds - records.compiled) / steps,
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
