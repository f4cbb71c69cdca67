"""Snakemake's executor for Slurm, as this project needs it: `executor: torch-relay`, with the options `torch-relay-…`.

It is the executor of snakemake-executor-plugin-slurm, and overrides what loses jobs, order or time. Each method says
what the plugin does without it. Seen in Snakemake 9.27.1 and snakemake-executor-plugin-slurm 2.8.0.

Snakemake imports this package with every call, also of other workflows: what it needs of `relay` is imported where it
is used.
"""

import asyncio
import os
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as slurm
from snakemake_executor_plugin_slurm import common_settings  # Snakemake asks for it
from snakemake_interface_common.exceptions import WorkflowError

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

BEAT_SECONDS = 0.25  # how soon a driver that sleeps sees that it is to end
LONGER_SECONDS = 10  # each interval between two looks, while no job ends
SUBMISSION_PAUSE_SECONDS = 5.0  # the first between two tries of a submission; each is twice as long
LONGEST_PAUSE_SECONDS = 60.0
#: What sbatch says where it has submitted nothing, and may do so later, and what that means.
_LATER = {
    "(?i)unable to contact slurm controller|connection refused|temporarily unable to accept|no route to host": (
        "its controller is busy or down (`scontrol ping`)"
    ),
    # QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit, …
    "SubmitJob": "you may have no more jobs in its queue (`sacctmgr show assoc` and `show qos`)",
}


@dataclass
class ExecutorSettings(slurm.ExecutorSettings):
    """The plugin's, without sacct, which needs accounting and has been seen to wait for cancelled jobs for ever."""

    jobname_prefix: str = field(
        default="relay",
        metadata={"help": "Job names start with it: a restarted driver finds the jobs of a killed one by them."},
    )
    status_command: str = field(
        default="squeue", metadata={"help": "Command to query job status.", "choices": ["squeue"]}
    )


class Executor(slurm.Executor):
    """Submits jobs in the planned order, and waits for each to its end, whatever Slurm does meanwhile."""

    next_seconds_between_status_checks: float

    def __init__(self, workflow: Any, logger: Any) -> None:
        sys.path.append(str(Path(__file__).parents[3] / "scripts"))  # this project's Snakefile has put it first
        from relay.chain.slurm import environment

        for name in os.environ.keys() - environment("sbatch").keys():  # a user's defaults for what commands print
            del os.environ[name]
        super().__init__(workflow, logger)

    def __post_init__(self, *arguments: Any, **options: Any) -> None:
        """Jobs reach Slurm in the order in which they are handed over: two threads let neighbours change places."""
        from relay.driver.queue import Queue, longest_poll
        from relay.driver.waiting import News

        super().__post_init__(*arguments, **options)
        self._job_submission_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slurm_job_submit")
        settings = self.workflow.executor_settings
        restarted = {"PREEMPTED": not settings.no_requeue, "NODE_FAIL": settings.requeue}
        self._news = News(self.logger)
        self._queue = Queue(self.run_uuid, self._news, {state for state, by_slurm in restarted.items() if by_slurm})
        self._longest_seconds = longest_poll()
        self._ending = threading.Event()
        self._later: list[Any] | None = None  # while a job is submitted: that it can be submitted later, and why

    def get_snakefile(self) -> str:
        """Of the copy that the driver has made of the workflow: the checkout may be edited while jobs wait."""
        from relay.planning.handed import FOLDER

        copy = (FOLDER / "Snakefile").absolute()
        return str(copy) if copy.exists() else str(super().get_snakefile())

    def run_job(self, job: Any) -> None:
        """A job that Slurm takes later is submitted again, until it does or the driver ends.

        So it is where sbatch reached no controller, and where the user may have no more jobs in the queue. The plugin
        reports it as failed, so that half a minute uses up all attempts of every job that is just to be submitted
        (https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/313). Where the answer was lost, it still
        fails: Slurm may have the job. On Ctrl-C, what is not submitted yet is left out.
        """
        pause = SUBMISSION_PAUSE_SECONDS
        while True:
            self._later = []
            super().run_job(job)
            later, self._later = self._later, None
            if not later:
                return self._news.submitted()
            job_info, message, why = later[0]
            self._news.unsubmitted(why)
            if self._ending.wait(pause):
                return self._report_job_error_threadsafe(job_info, message)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        why = next((why for said, why in _LATER.items() if re.search(said, msg)), None)
        if self._later is not None and why:
            self._later.append((job_info, msg, why))
        else:
            super()._report_job_error_threadsafe(job_info, msg)

    async def check_active_jobs(self, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        """One look at the queue: what is over is told to Snakemake, all else is asked for again.

        The plugin forgets all jobs after five looks that fail in succession
        (https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/207), and waits without end for jobs that
        are preempted or forgotten. It goes over to sacct by itself, and looks every 180 s whatever `MinJobAge` is.
        """
        settings = self.workflow.executor_settings
        seconds = settings.init_seconds_before_status_checks
        if active_jobs:  # else the executor may still be being made
            over = self._queue.look([job.external_jobid for job in active_jobs])
            seconds = seconds if over else self.next_seconds_between_status_checks + LONGER_SECONDS
            seconds = min(seconds, self._longest_seconds)
        for job in active_jobs:
            number, log = job.external_jobid, job.aux.get("slurm_logfile")
            match over.get(number):
                case None:
                    yield job
                case "COMPLETED":
                    self.report_job_success(job)
                    if log and not settings.keep_successful_logs:
                        with suppress(OSError):
                            log.unlink()
                case state:
                    message = f"SLURM-job '{number}' failed, SLURM status is: '{state}'. "
                    self.report_job_error(job, msg=message, aux_logs=[str(log)] if log else [])
        self.next_seconds_between_status_checks = seconds

    async def sleep(self) -> None:
        """Between two looks, no longer than the driver lives: the plugin ends calls up to 180 s late.

        https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/252
        """
        end = time.monotonic() + self.next_seconds_between_status_checks
        while self.wait and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, BEAT_SECONDS))

    def cancel_jobs(self, active_jobs: Sequence[Any]) -> None:
        """Where Slurm does not answer, what comes after it is done all the same."""
        try:
            super().cancel_jobs(active_jobs)
        except WorkflowError as error:
            self.logger.warning(f"{error}")

    def shutdown(self) -> None:
        """Also of local rules' programs: on SIGINT Snakemake would close the event loop while their end is awaited."""
        self._ending.set()
        self._job_submission_executor.shutdown(cancel_futures=True)
        super().shutdown()
        self.workflow.scheduler._local_executor.shutdown()
