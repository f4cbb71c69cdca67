"""When the job that trains a segment was submitted, and when it began: what its attempt's entry keeps of that."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from relay.base.errors import UserError
from relay.slurm import commands
from relay.spec.job import Job


def job_start(job: Job | None) -> dict[str, float]:
    """`submitted` and `job_started`, in seconds since 1970; without what is not known.

    Slurm tells them of the run's own job. Elsewhere a job begins with this Python.
    """
    if job is None:
        return {"job_started": psutil.Process().create_time()}
    with suppress(UserError):  # a controller that is busy: it is only for the report
        told = commands.waited(os.environ.get("SLURM_JOB_ID", ""))
        names = {"submitted": "submitted", "started": "job_started"}
        return {names[name]: seconds for name, seconds in told.items()}
    return {}
