"""Every change that this project makes to Snakemake and its Slurm plugin while they run.

Each function below describes one change: what they do without it, the version in which that was seen, why it is wrong
here, and the issue upstream. `tests/test_patches.py` holds each one against the installed version, so that a release
that no longer needs it, or that it no longer fits, fails a test.

Seen in Snakemake 9.27.1, snakemake-executor-plugin-slurm 2.8.0 and snakemake-interface-executor-plugins 9.4.0.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from relay.base.errors import UserError
from relay.chain.slurm import environment
from relay.driver.job_states import LONGEST_POLL_SECONDS, JobStates, longest_poll
from relay.driver.waiting import News
from relay.planning import handed
from relay.slurm import commands

PLUGIN = "snakemake_executor_plugin_slurm"
BEAT_SECONDS = 0.25  # how soon a driver that sleeps sees that it is to end
SUBMISSION_PAUSE_SECONDS = 5.0
#: What sbatch says where it reached no controller, so that nothing was submitted.
_UNREACHED = re.compile(
    "unable to contact slurm controller|connection refused|temporarily unable to accept|no route to host", re.I
)
Answer = tuple[dict[str, str] | None, float | None]


@dataclass
class Context:
    """What the patches work with.

    `poll_seconds`: the longest interval between two looks at the queue. `ending`: set when the executor is to end.
    """

    plugin: Any
    states: JobStates
    news: News
    by_queue: bool
    poll_seconds: float
    ending: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Patch:
    """`owner`'s attribute `name` is to be `replacement`."""

    owner: Any
    name: str
    replacement: Any


def replace_execute(workflow: Any, guarded: Callable[..., None]) -> None:
    """`workflow.execute` becomes `guarded`, which calls it. For the whole process, with every executor.

    Snakemake has no hook between reading the Snakefile and building its DAG: `onstart:` comes after the DAG. But
    whether anything is to run, and with which executor, is told in `execute` only, and a driver has to wait for the
    jobs of a killed one before the DAG looks at the files. No upstream issue known.
    """
    workflow.execute = guarded


@contextmanager
def applied(settings: Any) -> Iterator[None]:
    """While this lasts, the Slurm plugin is changed by all of the patches below; other executors are left alone.

    `settings`: the executor's. With squeue, the queue is also looked at often enough for what Slurm remembers.
    Exits with one line where the installed version has not what is to be replaced.
    """
    if type(settings).__module__ != PLUGIN:
        yield
        return
    from snakemake.logging import logger

    for name in os.environ.keys() - environment("sbatch").keys():  # the plugin's own calls answer by them, too
        del os.environ[name]
    queue = settings.status_command == "squeue"
    context = Context(
        plugin=sys.modules[PLUGIN],
        states=JobStates(preempted_is_final=bool(settings.no_requeue)),
        news=News(logger),
        by_queue=queue,
        poll_seconds=longest_poll() if queue else LONGEST_POLL_SECONDS,
    )
    with ExitStack() as stack:
        try:
            for change in CHANGES:
                for patch in change(context):
                    stack.enter_context(replaced(patch))
        except (AttributeError, ImportError) as error:
            sys.exit(
                f"error: {error}: this project was not tried with this version of Snakemake or of its Slurm plugin; "
                "`make install` installs those that it was tried with"
            )
        yield


@contextmanager
def replaced(patch: Patch) -> Iterator[None]:
    """While this lasts, the patch holds."""
    before = getattr(patch.owner, patch.name)
    setattr(patch.owner, patch.name, patch.replacement)
    try:
        yield
    finally:
        setattr(patch.owner, patch.name, before)


def jobs_that_are_over_count_as_failed(context: Context) -> list[Patch]:
    """`JobStates` adds to Slurm's answer what is known of preempted and of forgotten jobs.

    `check_active_jobs` leaves a preempted job to Slurm, which starts none again that was submitted with
    `--no-requeue`; and it takes a job that is not listed for one that is not listed yet. For both it waits for ever.
    `query_job_status` is not told which jobs are asked for, so that both functions are replaced.

    Upstream: https://github.com/snakemake/snakemake-executor-plugin-slurm/pull/132 made preempted jobs no failure. For
    forgotten jobs no upstream issue known.
    """
    plugin, states = context.plugin, context.states
    query, check = plugin.query_job_status, plugin.Executor.check_active_jobs

    async def query_job_status(command: str, logger: Any) -> Answer:
        told, seconds = await query(command, logger)
        return (told if told is None else states.complete(told, command.startswith("squeue"), logger)), seconds

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        states.ask_for(job.external_jobid for job in active_jobs)
        async for job in check(self, active_jobs):
            yield job

    return [
        Patch(plugin, "query_job_status", query_job_status),
        Patch(plugin.Executor, "check_active_jobs", check_active_jobs),
    ]


def no_answer_forgets_no_job(context: Context) -> list[Patch]:
    """A look at the queue that fails tells nothing, instead of ending the watch over all jobs.

    `query_job_status` returns (None, None) where squeue or sacct fails. After five of these `check_active_jobs` yields
    no job, and what it does not yield is never asked for again: the driver waits for ever, without a word. An outage
    of Slurm's controller for 90 seconds does that. Here the answer is empty instead: all jobs stay active, the next
    look comes after the usual interval, and a line says that Slurm does not answer.

    Upstream: https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/207 (with sacct; open).
    """
    query, news = context.plugin.query_job_status, context.news

    async def query_job_status(command: str, logger: Any) -> Answer:
        told, seconds = await query(command, logger)
        if told is None:
            news.unanswered()
            return {}, 0.0
        news.answered()
        return told, seconds

    return [Patch(context.plugin, "query_job_status", query_job_status)]


def jobs_that_wait_are_mentioned(context: Context) -> list[Patch]:
    """After a look at the queue, a line tells of jobs that do not start, and why.

    The plugin asks Slurm for the jobs' states, not for the reasons, and says nothing while all of them wait: a job that
    is held, or can never start, looks like one that runs. No upstream issue known.
    """
    check = context.plugin.Executor.check_active_jobs

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        async for job in check(self, active_jobs):
            yield job
        if not context.news.in_outage:
            with suppress(UserError):  # Slurm is busy: the next look tells
                some_wait = active_jobs and context.states.some_wait
                context.news.waiting(commands.waiting(self.run_uuid) if some_wait else [])

    return [Patch(context.plugin.Executor, "check_active_jobs", check_active_jobs)]


def the_queue_is_looked_at_in_time(context: Context) -> list[Patch]:
    """Two looks at the queue are never further apart than Slurm remembers a job's end.

    `check_active_jobs` lengthens the interval to 180 s whatever `MinJobAge` is. No upstream issue known.
    """
    check = context.plugin.Executor.check_active_jobs

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        async for job in check(self, active_jobs):
            yield job
        self.next_seconds_between_status_checks = min(self.next_seconds_between_status_checks, context.poll_seconds)

    return [Patch(context.plugin.Executor, "check_active_jobs", check_active_jobs)]


def squeue_stays_squeue(context: Context) -> list[Patch]:
    """Whoever asked for squeue gets it.

    With a short `MinJobAge`, `check_active_jobs` goes over to sacct by itself, which needs accounting and has been seen
    to wait for cancelled jobs for ever. `the_queue_is_looked_at_in_time` removes the reason. No upstream issue known.
    """
    age = context.plugin.get_min_job_age
    return [Patch(context.plugin, "get_min_job_age", (lambda: sys.maxsize) if context.by_queue else age)]


def sleep_ends_with_the_driver(context: Context) -> list[Patch]:
    """Between two looks at the queue, the executor sleeps no longer than the driver lives.

    `RemoteExecutor.shutdown` waits for its thread, which sleeps for the whole interval. That is up to 180 s of nothing
    at the end of each call, and after Ctrl-C; and 10 s where no job was submitted at all.

    Upstream: https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/252 (open).
    """

    async def sleep(self: Any) -> None:
        end = time.monotonic() + self.next_seconds_between_status_checks
        while self.wait and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, BEAT_SECONDS))

    return [Patch(context.plugin.Executor, "sleep", sleep)]


def local_rules_end_before_the_driver(_: Context) -> list[Patch]:
    """The scheduler ends when the programs of local rules have ended, also where a signal ends it.

    On SIGINT `schedule` tells the plugin's executor alone to end. The one for local rules goes on, and Snakemake closes
    the event loop that it uses: a traceback, and the local rule's end is lost. No upstream issue known.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    schedule = JobScheduler.schedule

    def to_the_end(self: Any) -> bool:
        try:
            return bool(schedule(self))
        finally:
            self._local_executor.shutdown()

    return [Patch(JobScheduler, "schedule", to_the_end)]


def ready_jobs_go_by_priority(_: Context) -> list[Patch]:
    """Of jobs that are ready together, those of higher priority are handed to their executor first.

    Ready jobs are a set. The schedulers choose by priority which of them fit; what they chose keeps the set's order.
    With room for all (`jobs: 100`), priorities therefore mean nothing. Here they are the planned order of the repeats,
    which is a rule of measurement.

    Upstream: https://github.com/snakemake/snakemake/issues/615 (the order of a set, where no priorities are given).
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    run = JobScheduler.run

    def in_order(self: Any, jobs: Sequence[Any], executor: Any = None) -> None:
        run(self, sorted(jobs, key=lambda job: -job.priority), executor=executor)

    return [Patch(JobScheduler, "run", in_order)]


def one_submission_at_a_time(context: Context) -> list[Patch]:
    """Jobs reach Slurm in the order in which they were handed to the plugin.

    It submits with two threads, so that neighbours change places. One sbatch takes some hundredths of a second. No
    upstream issue known.
    """
    init = context.plugin.Executor.__post_init__

    def post_init(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self._job_submission_executor.shutdown()
        self._job_submission_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slurm_job_submit")

    return [Patch(context.plugin.Executor, "__post_init__", post_init)]


def submissions_wait_for_slurm(context: Context) -> list[Patch]:
    """A job whose sbatch reached no controller is submitted again, until Slurm answers or the driver ends.

    `run_job` reports such a job as failed. An sbatch gives up after 9 s with `MessageTimeout=10`: an outage of half a
    minute uses up three attempts of every job that is just to be submitted. Where the answer was lost, or Slurm refused
    the job, it still fails: the first may have been submitted. On Ctrl-C, what is not submitted yet is left out.

    Upstream: https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/313 (closed).
    """
    executor, ending = context.plugin.Executor, context.ending
    submit, report, end = executor.run_job, executor._report_job_error_threadsafe, executor.shutdown
    unreached = threading.local()

    def report_error(self: Any, job_info: Any, msg: str) -> None:
        if hasattr(unreached, "reports") and _UNREACHED.search(msg):
            unreached.reports.append((job_info, msg))
        else:
            report(self, job_info, msg)

    def run_job(self: Any, job: Any) -> None:
        while True:
            unreached.reports = []
            submit(self, job)
            reports = unreached.reports
            del unreached.reports
            if not reports:
                return context.news.submitted()
            context.news.unsubmitted()
            if ending.wait(SUBMISSION_PAUSE_SECONDS):
                return report(self, *reports[0])

    def shutdown(self: Any) -> None:
        ending.set()
        self._job_submission_executor.shutdown(cancel_futures=True)
        end(self)

    return [
        Patch(executor, "_report_job_error_threadsafe", report_error),
        Patch(executor, "run_job", run_job),
        Patch(executor, "shutdown", shutdown),
    ]


def jobs_run_the_workflow_that_they_were_handed(context: Context) -> list[Patch]:
    """A job starts the copy of the workflow that its driver has made of it (`planning.handed`).

    Executors name the Snakefile of the checkout, which may be edited, or updated, while jobs wait in the queue. No
    upstream issue known: Snakemake copies sources only for jobs that share no file system.
    """
    executor = context.plugin.Executor
    todays = executor.get_snakefile

    def get_snakefile(self: Any) -> str:
        copy = (handed.FOLDER / "Snakefile").absolute()
        return str(copy) if copy.exists() else str(todays(self))

    return [Patch(executor, "get_snakefile", get_snakefile)]


CHANGES: tuple[Callable[[Context], list[Patch]], ...] = (
    jobs_that_are_over_count_as_failed,
    no_answer_forgets_no_job,  # after the one above, which has to see that there was no answer
    jobs_that_wait_are_mentioned,
    the_queue_is_looked_at_in_time,
    squeue_stays_squeue,
    sleep_ends_with_the_driver,
    local_rules_end_before_the_driver,
    ready_jobs_go_by_priority,
    one_submission_at_a_time,
    submissions_wait_for_slurm,
    jobs_run_the_workflow_that_they_were_handed,
)
