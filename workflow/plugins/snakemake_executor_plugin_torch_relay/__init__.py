"""Snakemake's executor for Slurm, as this project needs it: `executor: torch-relay`, with the options `torch-relay-…`.

It is the executor of snakemake-executor-plugin-slurm, and overrides what loses jobs, order or time. Each method says
what the plugin does without it. Seen in Snakemake 9.27.1 and snakemake-executor-plugin-slurm 2.8.0.

Snakemake imports this package with every call, also of other workflows: what it needs of `relay` is imported where it
is used.
"""

import asyncio
import os
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
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

_plugins_number = slurm.validate_or_get_slurm_job_id
BEAT_SECONDS = 0.25  # how soon a driver that sleeps sees that it is to end
LONGER_SECONDS = 10  # each interval between two looks, while no job ends


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


def _number_in(number: str, printed: str) -> str:
    """The job's number in what sbatch printed: sites print more, where the plugin gives up a job that Slurm has."""
    from relay.chain.slurm import number_of

    return (number_of(printed) or str(_plugins_number(number, printed))).partition(";")[0]


class Executor(slurm.Executor):
    """Submits jobs in the planned order, and waits for each to its end, whatever Slurm does meanwhile."""

    next_seconds_between_status_checks: float

    def __init__(self, workflow: Any, logger: Any) -> None:
        sys.path.append(str(Path(__file__).parents[3] / "scripts"))  # this project's Snakefile has put it first
        from relay.chain.slurm import environment
        from relay.slurm.commands import DRIVER_JOB, driver_job

        for name in os.environ.keys() - environment("sbatch").keys():  # a user's defaults for what commands print
            del os.environ[name]
        if job := driver_job():  # the plugin removes the variable that tells it
            os.environ[DRIVER_JOB] = job
        super().__init__(workflow, logger)

    def __post_init__(self, *arguments: Any, **options: Any) -> None:
        """What is known of submissions and of the queue, and the words of sbatch that tell a job's number."""
        from relay.driver.queue import Queue, longest_poll
        from relay.driver.waiting import News

        super().__post_init__(*arguments, **options)
        slurm.validate_or_get_slurm_job_id = _number_in
        self._lanes: dict[tuple[str, ...], tuple[Any, ThreadPoolExecutor]] = {}  # what the same limits hold for
        self._submitted: set[str] = set()
        self._failure = threading.local()  # of the submission that a thread is at: what sbatch said
        settings = self.workflow.executor_settings
        restarted = {"PREEMPTED": not settings.no_requeue, "NODE_FAIL": settings.requeue}
        self._news = News(self.logger)
        self._queue = Queue(self.run_uuid, self._news, {state for state, by_slurm in restarted.items() if by_slurm})
        self._longest_seconds = longest_poll()
        self._ending = threading.Event()

    def get_snakefile(self) -> str:
        """Of the copy that the driver has made of the workflow: the checkout may be edited while jobs wait."""
        from relay.planning.handed import FOLDER

        copy = (FOLDER / "Snakefile").absolute()
        return str(copy) if copy.exists() else str(super().get_snakefile())

    def _submit_job(self, job: Any) -> None:
        """Jobs reach Slurm in the order in which they are handed over: two threads let neighbours change places.

        Limits are of a partition, an account or a QOS: a job that one of them holds back holds back no other's.
        """
        self.run_job_pre(job)
        self._lane(job)[1].submit(self.run_job, job)

    def _lane(self, job: Any) -> tuple[Any, ThreadPoolExecutor]:
        from relay.driver.submission import Submission

        named = tuple(str(job.resources.get(name) or "") for name in ("slurm_partition", "slurm_account", "qos"))
        if named not in self._lanes:
            submission = Submission(self.run_uuid, self._news, self._ending.wait, named[0])
            self._lanes[named] = submission, ThreadPoolExecutor(max_workers=1, thread_name_prefix="slurm_job_submit")
        return self._lanes[named]

    def run_job(self, job: Any) -> None:
        """A job that Slurm takes later is submitted again, until it does or the driver ends.

        The plugin reports it as failed, so that half a minute uses up all attempts of every job that is just to be
        submitted (https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/313). So it does where only the
        answer was lost, and Slurm has the job. On Ctrl-C, what is not submitted yet is left out.
        """
        submission, _ = self._lane(job)
        while True:
            self._failure.of = None
            super().run_job(job)
            failed, self._failure.of = self._failure.of, False
            if not failed:
                return submission.done()
            job_info, message = failed
            if sent := submission.sent(message, self._submitted | self._queue.doubles):
                number, log = sent
                submission.done()
                job_info = SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": log})
                return self._report_job_submission_threadsafe(job_info)
            if why := submission.given_up(message):
                return super()._report_job_error_threadsafe(job_info, why)

    def _report_job_submission_threadsafe(self, job_info: Any) -> None:
        self._submitted.add(job_info.external_jobid)
        super()._report_job_submission_threadsafe(job_info)

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        if getattr(self._failure, "of", False) is None:
            self._failure.of = (job_info, msg)
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
        for _, thread in self._lanes.values():
            thread.shutdown(cancel_futures=True)
        super().shutdown()
        self.workflow.scheduler._local_executor.shutdown()
