"""Jobs that a killed driver left behind: the next one waits for their end, so that nothing is done twice."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from relay.base.errors import UserError
from relay.base.lifeline import DRIVER
from relay.driver.claim import say
from relay.slurm import commands
from relay.spec.labels import counted

POLL_SECONDS = 15.0
SETTLE_SECONDS = 5.0  # an sbatch that a killed driver had just started may still get through
PROGRESS_SECONDS = 60.0
LOOK_SECONDS = 0.2  # between two looks at the processes of this machine


def wait_for_jobs(folder: Path, prefix: str, left_by: str, poll_seconds: float) -> None:
    """Return once no job of an earlier driver (named `{prefix}_…`, submitted for `folder`) is in the queue.

    `left_by`: the driver that was killed; '' where none was. What they did is kept, so that the DAG, which is built
    after this, asks for what is missing only. Raises UserError if the queue cannot be read at the start; later on, a
    controller that does not answer is waited for.
    """
    jobs = commands.jobs_named(prefix, folder)
    if left_by and not jobs:
        time.sleep(SETTLE_SECONDS)
        jobs = commands.jobs_named(prefix, folder)
    if not jobs:
        return
    whose = f"a driver that was killed ({left_by})" if left_by else "an earlier driver"
    say(f"Waiting for the end of {counted(len(jobs), 'job')} of {whose}; nothing is submitted twice:")
    for job in jobs:
        say(f"  {job.id} {job.condition} {job.comment}")
    say(f"To cancel them instead: scancel {' '.join(job.id for job in jobs)}")
    _until_over(lambda: commands.jobs_named(prefix, folder), "job", poll_seconds)


def wait_for_processes(folder: Path, left_by: str) -> None:
    """Return once no process of this machine is left that an earlier driver (`left_by`) started for `folder`.

    They were sent SIGTERM when their driver died: what trains saves its state and ends.
    """
    left = _processes_of(folder)
    if not left:
        return
    say(f"Waiting for {counted(len(left), 'process')} of a driver that was killed ({left_by}), to save and end.")
    say(f"To end them at once, and lose what they do not save: kill -9 {' '.join(str(p.pid) for p in left)}")
    _until_over(lambda: _processes_of(folder), "process", LOOK_SECONDS)


def _until_over(look: Callable[[], Sequence[Any]], what: str, seconds: float) -> None:
    """Look every so many seconds until nothing is left, and say each minute how much is. A look may fail."""
    said_at, count = time.monotonic(), -1
    while count != 0:
        time.sleep(seconds)
        try:
            count = len(look())
            news = f"{counted(count, what)} left"
        except UserError as error:
            news = str(error)
        if count != 0 and time.monotonic() - said_at >= PROGRESS_SECONDS:
            say(f"Waiting: {news}")
            said_at = time.monotonic()
    say("All is over; going on with what is missing")


def _processes_of(folder: Path) -> list[psutil.Process]:
    """The processes that drivers of this folder have started here, and whatever these have started."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [process for process in psutil.process_iter() if process.pid not in own and _is_of(process, folder)]


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        _, _, its_folder = process.environ().get(DRIVER, "").partition(" ")
        return its_folder == str(folder) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # another user's, or over
        return False
