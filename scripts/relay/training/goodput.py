"""What the time of a run's jobs went to: goodput, split. Needs no torch.

The parts of an attempt add up to the time that it held its job. `startup` ends when the processes are started, on nodes
that are prepared; `loading` with the first line of their records. `repeated` are steps that a later attempt did again,
those that a kill took before they were recorded among them. `idle` is what is in no other part: most of it the end of
the job. The wait in the queue is before all of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from relay.run_folder.run_chain import Attempt

Line = Mapping[str, Any]
PARTS = ("startup", "loading", "steps", "repeated", "evaluation", "saving", "idle")
# Their names in a summary, and so in the tables. That of `steps` is `train_seconds`.
COLUMNS = {part: f"{part}_seconds" for part in PARTS if part != "steps"}


@dataclass(frozen=True)
class Spent:
    """An attempt's time: the seconds that its job waited before it began, and the seconds of each part.

    `queued` is None where no scheduler told it. `last` is the last step of which the records tell.
    """

    attempt: Attempt
    queued: float | None
    last: int | None
    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """How long the job was held."""
        return fsum(self.parts.values())


def spent(attempt: Attempt, lines: Sequence[Line], counted: float) -> Spent:
    """The time of an attempt. `lines` are its records.

    `counted` are the seconds of its steps that count. Of a job that was killed whole, its time ends with its last sign
    of life. No less is held than was trained: a clock that was set back says less.
    """
    began = min(attempt.job_started or attempt.started, attempt.started)
    ended = max(attempt.ended or (lines[-1]["time"] if lines else attempt.started), began)
    trained = fsum(block[2] for line in lines for block in line.get("blocks", ()))
    paused = {part: _paused(lines, part) for part in ("evaluation", "saving")}
    first = lines[0]["time"] if lines else ended
    launched = lines[0].get("launched", attempt.started) if lines else attempt.started
    parts = {
        "startup": max(0.0, launched - began),
        "loading": max(0.0, first - launched),
        "steps": counted,
        "repeated": max(0.0, trained - counted) + _lost(lines, ended),
        **paused,
    }
    parts["idle"] = max(0.0, ended - began - fsum(parts.values()))
    submitted = attempt.submitted if attempt.job_started is not None else None
    queued = None if submitted is None else max(0.0, began - submitted)
    return Spent(attempt, queued, _reached(lines), parts)


def _paused(lines: Sequence[Line], part: str) -> float:
    return fsum(line.get("paused", {}).get(part, 0.0) for line in lines)


def _lost(lines: Sequence[Line], ended: float) -> float:
    """Seconds between the last record of an attempt that was killed and its end: steps of which no record tells."""
    return max(0.0, ended - lines[-1]["time"]) if lines and "end" not in lines[-1] else 0.0


def _reached(lines: Sequence[Line]) -> int | None:
    """The last step of which the records tell."""
    if not lines:
        return None
    return int(lines[-1].get("end", lines[0]["start"] + sum(len(line.get("losses", ())) for line in lines)))


def split(attempts: Sequence[Spent]) -> dict[str, Any]:
    """What a summary has of it: the seconds of each part over all attempts, and the `jobs` one by one."""
    queued = [each.queued for each in attempts if each.queued is not None]
    totals = {name: round(fsum(each.parts[part] for each in attempts), 6) for part, name in COLUMNS.items()}
    jobs = [
        {
            "attempt": each.attempt.number,
            "job": each.attempt.job,
            "last": each.last,
            "queued": each.queued,
            "parts": {part: round(each.parts[part], 3) for part in PARTS},
        }
        for each in attempts
    ]
    return {"queue_seconds": fsum(queued) if queued else None, **totals, "jobs": jobs}
