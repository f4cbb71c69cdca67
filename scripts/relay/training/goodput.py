"""What the time of a run's jobs went to: goodput, split. Needs no torch.

The parts of an attempt add up to the time that it held its job. `startup` ends when the processes are started, on nodes
that are prepared; `loading` with the first line of their records. `repeated` are steps that a later attempt did again,
those that a kill took before they were recorded among them. `idle` is what is in no other part: most of it the end of
the job. The wait in the queue is before all of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any

from relay.run_folder.attempts import Records
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
        "loading": max(0.0, first - launched),
        "steps": counted,
        "repeated": max(0.0, trained - counted) + lost,
        "evaluation": records.paused("evaluation"),
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
