"""What is known of the jobs that the Slurm executor waits for, and how often the queue is to be looked at.

The executor alone would wait for some jobs without an end. Slurm starts no preempted job again that was submitted with
`--no-requeue`. A job that ended long ago is no longer listed, and the executor takes it for one that is not listed yet.
Both count as failed here, so that Snakemake's retries take over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relay.base.errors import UserError
from relay.slurm import commands

LONGEST_POLL_SECONDS = 180.0  # the plugin's own
SHORTEST_POLL_SECONDS = 10.0  # a courtesy to the controller
ENOUGH_SECONDS = 240.0  # more than the plugin's longest interval, and what a slow answer takes


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
class JobStates:
    """What is known of the jobs that the executor asks for.

    `preempted_is_final`: whether Slurm starts no preempted job again.
    """

    preempted_is_final: bool
    _asked: frozenset[str] = frozenset()
    _unlisted: frozenset[str] = frozenset()
    #: Whether some of them had not started when the queue was last looked at.
    some_wait: bool = False

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
        self.some_wait = any(commands.waits(states[id]) for id in self._asked & states.keys())
        if self.preempted_is_final:
            for id in self._asked:
                if states.get(id) == "PREEMPTED":
                    logger.warning(f"Job {id}: preempted; a retry goes on with what it saved")
                    states[id] = "FAILED"
        return states
