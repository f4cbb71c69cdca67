"""What this project replaces in Snakemake while it runs, each with the text of an issue for its developers.

Seen in Snakemake 9.27.1. All else goes by Snakemake's own doors: the executor and the logger plugin in
`workflow/plugins`, and `onstart:`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from snakemake.jobs import Job


def replace_execute(workflow: Any, guarded: Callable[..., None]) -> None:
    """`workflow.execute` becomes `guarded`, which calls it. For the whole process, with every executor.

    **A hook between reading the Snakefile and building the DAG.** `onstart:` comes after the DAG was built. A workflow
    may have to act before: wait for jobs that a killed Snakemake has left in the queue, whose files the DAG then
    counts; refuse a target with a sentence of its own; take a lock. The end of the Snakefile is too early, because
    whether anything is to run, and with which executor, is known only in `Workflow.execute`. Wanted: a hook such as
    `onready:`, called at the beginning of `Workflow.execute` with the executor plugin and its settings, not in jobs.
    """
    workflow.execute = guarded


@contextmanager
def replaced_restart_times(times: Callable[[Any], int]) -> Iterator[None]:
    """While this lasts, `times(job)` tells how often a job may be tried in all. Asked once after each failure.

    **`retries` as a function.** A rule has one number of retries for all failures
    (https://github.com/snakemake/snakemake/issues/2441). A fault of the program will only come again, while a job that
    was preempted, and saves its state, should go on however often this happens. Which of them it was is known to the
    workflow: by the job's log, exit status, or newest checkpoint. Wanted: `retries:` takes a function of the job that
    has just failed (wildcards, attempt, output, log), as `resources:` do; `JobScheduler._handle_error` then asks it.
    """
    usual = Job.restart_times
    Job.restart_times = property(times)
    try:
        yield
    finally:
        Job.restart_times = usual
