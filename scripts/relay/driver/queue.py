"""Slurm's queue as the executor looks at it: which jobs are over, and how often it has to look.

Slurm starts no preempted job again that was submitted with `--no-requeue`. A job that ended long ago is no longer
listed. Both are over here, so that Snakemake's retries take over.
"""

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from relay.base.errors import UserError
from relay.driver.waiting import News
from relay.slurm import commands

LONGEST_POLL_SECONDS = 180.0  # a courtesy to the controller, as is the shortest
SHORTEST_POLL_SECONDS = 10.0
ENOUGH_SECONDS = 240.0  # more than the longest interval, and what a slow answer takes


def longest_poll() -> float:
    """The longest interval at which squeue is sure to show a job's end, in seconds; warns where it is a short one."""
    try:
        remembered = commands.seconds_remembered()
    except UserError:  # told nowhere: whoever reads the queue next has more to say
        return LONGEST_POLL_SECONDS
    if remembered is None or remembered >= ENOUGH_SECONDS:
        return LONGEST_POLL_SECONDS
    seconds = max(remembered / 2, SHORTEST_POLL_SECONDS)
    print(
        f"warning: Slurm forgets a job {remembered:g} s after its end (MinJobAge; usual are 300): the queue is looked "
        f"at every {seconds:g} s; a job that is forgotten all the same counts as failed, its retry finds what it did",
        file=sys.stderr,
        flush=True,
    )
    return seconds


@dataclass
class Queue:
    """The jobs of one name, and what `news` says of them.

    `restarted`: the states after which Slurm starts a job again by itself. `doubles`: jobs that were cancelled here.
    """

    name: str
    news: News
    restarted: Collection[str]
    _unlisted: frozenset[str] = frozenset()
    _strange: frozenset[str] = frozenset()
    doubles: set[str] = field(default_factory=set)

    def look(self, ids: Collection[str]) -> dict[str, str]:
        """Of these jobs, those that are over, by their ids: COMPLETED, or how they failed.

        A look that fails tells nothing of any. A job that is not listed is given up after two looks, and a question for
        this very job. This is not asked of tasks of arrays, because squeue lists these together.
        """
        try:
            listed = commands.named(self.name)
        except UserError:
            self.news.unanswered()
            return {}
        self.news.answered()
        self._end_doubles(listed, ids)
        doubles = self.doubles | self._strange
        self.news.waiting([job for job in listed if commands.waits(job.state) and job.id not in doubles])
        states = {job.id: job.state for job in listed}
        unlisted = frozenset(id for id in ids if id.isdigit() and id not in states)
        for id in sorted(unlisted & self._unlisted):
            try:
                state = commands.state(id)
            except UserError:
                continue
            if state is None:
                self.news.forgotten(id)
            states[id] = state or "FAILED"
        self._unlisted = unlisted
        return {id: state for id in ids if commands.ended(state := states.get(id, "")) and state not in self.restarted}

    def _end_doubles(self, listed: Sequence[commands.QueuedJob], ids: Collection[str]) -> None:
        """Cancel, once, what does the same work as one of these jobs, as its comment tells, which is Snakemake's.

        Slurm may take a job so long after its answer was lost that another was submitted. A site may requeue a job
        that is over here. What is seen at one look alone may have been submitted since `ids` were told. Tasks of arrays
        share a comment.
        """
        own = {job.comment for job in listed if job.id in ids and job.comment.startswith("rule_")}
        strange = [job for job in listed if job.id.isdigit() and job.id not in ids and job.comment in own]
        before, self._strange = self._strange, frozenset(job.id for job in strange)
        for job in strange:
            if job.id in before - self.doubles and not commands.ended(job.state):
                with suppress(UserError):  # it is tried again with the next look
                    commands.cancel([job.id], tries=1)
                    self.doubles.add(job.id)
                    self.news.double(job.id)
