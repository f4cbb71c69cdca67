"""What Snakemake's Slurm executor is told of its jobs: that those are over which it would wait for without an end.

Seen in snakemake-executor-plugin-slurm 2.8: it leaves a preempted job to Slurm, though Slurm starts none again that was
submitted with `--no-requeue`; and a job that squeue lists no more, because its end is too long ago, is taken for one
that is not listed yet. Both count as failed here, so that Snakemake's retries take over.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relay.base.errors import UserError
from relay.slurm import commands

PLUGIN = "snakemake_executor_plugin_slurm"
LONGEST_POLL_SECONDS = 180.0  # the plugin's own
SHORTEST_POLL_SECONDS = 10.0  # a courtesy to the controller
ENOUGH_SECONDS = 240.0  # more than the plugin's longest interval, and what a slow answer takes


@contextmanager
def completed(settings: Any) -> Iterator[None]:
    """While this lasts, the Slurm executor learns of preempted and forgotten jobs; others are left alone.

    `settings`: the executor's. With squeue, the queue is also looked at often enough for what Slurm remembers; the
    plugin would go over to sacct, which has been seen to wait for cancelled jobs for ever.
    """
    if type(settings).__module__ != PLUGIN:
        yield
        return
    plugin: Any = sys.modules[PLUGIN]
    states = JobStates(preempted_is_final=bool(settings.no_requeue))
    query, check, age = plugin.query_job_status, plugin.Executor.check_active_jobs, plugin.get_min_job_age
    queue = settings.status_command == "squeue"
    poll_seconds = _longest_poll() if queue else LONGEST_POLL_SECONDS

    async def query_job_status(command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
        told, seconds = await query(command, logger)
        return (told if told is None else states.complete(told, command.startswith("squeue"), logger)), seconds

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        states.ask_for(job.external_jobid for job in active_jobs)
        async for job in check(self, active_jobs):
            yield job
        self.next_seconds_between_status_checks = min(self.next_seconds_between_status_checks, poll_seconds)

    plugin.query_job_status, plugin.Executor.check_active_jobs = query_job_status, check_active_jobs
    if queue:
        plugin.get_min_job_age = lambda: sys.maxsize
    try:
        yield
    finally:
        plugin.query_job_status, plugin.Executor.check_active_jobs, plugin.get_min_job_age = query, check, age


def _longest_poll() -> float:
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
class JobStates:
    """What is known of the jobs that the executor asks for.

    `preempted_is_final`: whether Slurm starts no preempted job again.
    """

    preempted_is_final: bool
    _asked: frozenset[str] = frozenset()
    _unlisted: frozenset[str] = frozenset()

    def ask_for(self, ids: Iterable[str]) -> None:
        """The jobs that were submitted and not seen to end. Not tasks of arrays: squeue lumps them together."""
        self._asked = frozenset(id for id in ids if id.isdigit())

    def complete(self, told: Mapping[str, str], by_queue: bool, logger: Any) -> dict[str, str]:
        """The states that Slurm told, by the jobs' ids, with those that it does not tell.

        `by_queue`: squeue told them, which knows a job from its submission on (accounting learns of it later). A job
        is given up after two answers without it, and one to the question for this very job.
        """
        states = dict(told)
        unlisted = self._asked - states.keys() if by_queue else frozenset()
        for id in sorted(unlisted & self._unlisted):
            try:
                state = commands.state(id)
            except UserError:
                continue
            if state is None:
                logger.warning(f"Job {id}: Slurm has forgotten it, so that it is over; its retry finds what it did")
            states[id] = state or "FAILED"
        self._unlisted = unlisted
        if self.preempted_is_final:
            for id in self._asked:
                if states.get(id) == "PREEMPTED":
                    logger.warning(f"Job {id}: preempted; a retry goes on with what it saved")
                    states[id] = "FAILED"
        return states
