"""What an attempt's entry keeps of the job that trains a segment: how long it waited, whether it shares its nodes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from relay.base.errors import UserError
from relay.chain.supervisor import started
from relay.slurm import commands
from relay.spec.job import Job


def job_start(job: Job | None) -> dict[str, Any]:
    """`submitted` and `job_started`, in seconds since 1970, and `shares_nodes`; without what is not known.

    Slurm tells them of the run's own job. Elsewhere a job begins with this Python.
    """
    if job is None:
        began = started()
        return {} if began is None else {"job_started": began}
    with suppress(UserError):  # a controller that is busy: it is only for the report
        shown = commands.show_job(os.environ.get("SLURM_JOB_ID", ""), tries=1)
        names = {"submitted": "submitted", "started": "job_started"}
        waited = {names[name]: seconds for name, seconds in commands.waited(shown).items() if name in names}
        shares = commands.shares_nodes(shown)
        return waited if shares is None else waited | {"shares_nodes": shares}
    return {}
