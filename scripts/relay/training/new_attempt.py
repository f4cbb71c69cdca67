"""What the chain keeps of an attempt that begins: its place in the chain, and the job in which it trains."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.chain.supervisor import started
from relay.run_folder.run_chain import Attempt, RunChain
from relay.run_folder.sound_checkpoints import saved_step
from relay.run_folder.try_again import FRUITLESS_ATTEMPTS, Case, Tried, given_up
from relay.slurm import commands
from relay.spec.job import Job


def begun(work: Path, chain: RunChain, first: int, last: int, job: Job | None) -> Attempt:
    """The attempt of this process's job. `job` is what was asked of Slurm; None where a run is on this machine."""
    return Attempt(
        number=chain.next_number(work),
        started=time.time(),
        first=first,
        last=last,
        found=saved_step(work),
        job=os.environ.get("SLURM_JOB_ID"),
        restarts=os.environ.get("SLURM_RESTART_COUNT", "0"),
        **_of_its_job(job),
    )


def _of_its_job(job: Job | None) -> dict[str, Any]:
    """`submitted`, `job_started` and `shares_nodes`, without what is not known.

    Slurm tells them of the run's own job. Elsewhere a job begins with this Python.
    """
    if job is None:
        return {"job_started": started()}
    with suppress(UserError):  # a controller that is busy: it is only for the report
        shown = commands.show_job(os.environ.get("SLURM_JOB_ID", ""), tries=1)
        waited = commands.waited(shown)
        return {
            "submitted": waited.get("submitted"),
            "job_started": waited.get("started"),
            "shares_nodes": commands.shares_nodes(shown),
        }
    return {}


def why_not(chain: RunChain, attempt: Attempt) -> str:
    """Why a job that Slurm has put back into the queue is given up; '' where it may go on.

    The driver does not see such a job's ends: Slurm starts it again after a lost node or a preemption, without end.
    """
    if attempt.job is None or attempt.restarts == "0":
        return ""
    before = chain.attempts[-FRUITLESS_ATTEMPTS:]
    fruitless = sum((other.job, other.found) == (attempt.job, attempt.found) for other in before)
    reason = given_up(Case.UNKNOWN, Tried(fruitless=fruitless, step=attempt.found))
    return f"Slurm has started job {attempt.job} again and again: {reason}" if reason else ""
