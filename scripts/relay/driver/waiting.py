"""What the driver says of jobs that do not start, and of a Slurm that does not answer.

What you have to act on is said at once. What passes by itself is said at growing intervals.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.base.clock import duration
from relay.run_folder.known_faults import look_up
from relay.slurm.commands import QueuedJob

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 1800.0
IDS_IN_A_LINE = 10


@dataclass
class Reminder:
    """When to say again that something lasts: after `first` seconds, then each time when it has lasted twice as long.

    Two lines are never further apart than `LONGEST_SECONDS`. Nothing is said when it is first asked.
    """

    first: float = FIRST_SECONDS
    said: bool = False
    _since: float | None = None
    _next: float = 0.0

    def due(self, now: float) -> float | None:
        """To be asked while it lasts: the seconds that it lasted so far, if it is to be said now; else None."""
        if self._since is None:
            self._since, self._next = now, self.first
        lasted = now - self._since
        if lasted <= self._next:
            return None
        self._next = min(max(2 * lasted, FIRST_SECONDS), lasted + LONGEST_SECONDS)
        self.said = True
        return lasted

    def over(self) -> None:
        """It does not last any more."""
        self._since, self.said = None, False


@dataclass
class News:
    """Says what the executor's looks at the queue show of jobs that wait, and of Slurm itself.

    `logger`: Snakemake's. `clock`: seconds that never run backwards.
    """

    logger: Any
    clock: Callable[[], float] = time.monotonic
    _waiting: Reminder = field(default_factory=Reminder)
    _outage: Reminder = field(default_factory=lambda: Reminder(first=0.0))  # one look that fails is no outage
    _away: dict[str, Reminder] = field(default_factory=dict)  # by partitions
    _full: dict[str, Reminder] = field(default_factory=dict)
    _mentioned: set[str] = field(default_factory=set)

    def unanswered(self) -> None:
        """A look at the queue failed."""
        self._lasts(
            self._outage,
            "Slurm has not answered for {}: its controller is busy or down (`scontrol ping`). "
            "Running jobs go on; the driver waits for an answer",
        )

    def answered(self) -> None:
        """A look at the queue succeeded."""
        self._over(self._outage, "Slurm answers again")

    def forgotten(self, id: str) -> None:
        """Slurm does not know a job of this id any more."""
        self.logger.warning(f"Job {id}: Slurm has forgotten it, so that it is over; its retry finds what it did")

    def double(self, id: str) -> None:
        """A job of this id was cancelled."""
        self.logger.warning(f"Job {id}: is cancelled, because another one in the queue does the same work")

    def away(self, partition: str, why: str) -> None:
        """Slurm's controller took no job of this partition ('' for Slurm's default), for a reason that passes."""
        reminder = self._away.setdefault(partition, Reminder(first=0.0))
        text = f"Slurm has taken no job{_of(partition)} for {{}}: {why}. The driver tries again until it does"
        self._lasts(reminder, text)

    def full(self, partition: str) -> None:
        """A limit keeps back a job of this partition. As jobs end, others take their place: it is never over."""
        reminder = self._full.setdefault(partition, Reminder(first=0.0))
        why = "you may have no more in its queue (`sacctmgr show assoc` and `show qos`). The driver waits"
        self._lasts(reminder, f"Slurm takes no further job{_of(partition)} now: {why}")

    def submitted(self, partition: str) -> None:
        """A job of this partition was submitted, or refused."""
        if reminder := self._away.get(partition):
            self._over(reminder, f"Slurm takes jobs{_of(partition)} again")

    def _lasts(self, reminder: Reminder, text: str) -> None:
        if (lasted := reminder.due(self.clock())) is not None:
            self.logger.warning(text.format(duration(round(lasted))))

    def _over(self, reminder: Reminder, text: str) -> None:
        if reminder.said:
            self.logger.warning(text)
        reminder.over()

    def waiting(self, jobs: Sequence[QueuedJob]) -> None:
        """These jobs of the driver have not started; none, where all have."""
        by_reason: dict[str, list[QueuedJob]] = defaultdict(list)
        for job in jobs:
            by_reason[job.reason].append(job)
        self._mentioned &= by_reason.keys()
        for reason in sorted(by_reason.keys() - self._mentioned):
            if advice := _advice(reason, by_reason[reason]):
                self.logger.warning(advice)
                self._mentioned.add(reason)
        if not jobs:
            self._waiting.over()
            return
        lasted = self._waiting.due(self.clock())
        if lasted is not None:
            counts = ", ".join(f"{len(some)} {some[0].state} ({reason})" for reason, some in sorted(by_reason.items()))
            self.logger.info(f"Waiting for Slurm to start jobs, for {duration(round(lasted))} now: {counts}")
            for reason in sorted(self._mentioned):
                self.logger.warning(_advice(reason, by_reason[reason]))


def _of(partition: str) -> str:
    return f" of partition {partition}" if partition else ""


def _advice(reason: str, jobs: Sequence[QueuedJob]) -> str | None:
    """One line about jobs that need somebody; None where time alone helps."""
    row = look_up(reason, "waits")
    if row is None:
        return None
    ids = " ".join([job.id for job in jobs[:IDS_IN_A_LINE]] + ["…"] * (len(jobs) > IDS_IN_A_LINE))
    count = "1 job does" if len(jobs) == 1 else f"{len(jobs)} jobs do"
    return f"{count} not start: {jobs[0].state} ({reason}): {row.remedy.format(ids=ids)}"
