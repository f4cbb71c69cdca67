"""What keeps a driver safe: the process of Snakemake that submits jobs and waits for them.

One driver at a time works on a folder's results; a restart waits for the jobs that a killed driver left behind, so
that none is submitted twice; a signal that ends the driver cancels what it submitted. The Snakefile calls `guard`,
so that all this holds however Snakemake was started.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from relay.base.errors import UserError
from relay.base.lock import NO_LOCKS
from relay.driver import patches
from relay.driver.targets import unknown_targets
from relay.slurm import commands

LOCK = Path(".snakemake/relay-driver.lock")
POLL_SECONDS = 15.0
SETTLE_SECONDS = 5.0  # an sbatch that a killed driver had just started may still get through
PROGRESS_SECONDS = 60.0
CANCEL_SECONDS = 2.0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def guard(
    workflow: Any,
    reading: Collection[str] = (),
    missing: Collection[str] = (),
    refused: Callable[[Collection[str]], Collection[str]] = lambda targets: (),
    cluster: str | None = None,
    before: Callable[[], None] = lambda: None,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Make this Snakemake workflow keep to the rules above. To be called in the Snakefile, by the main process alone.

    reading: targets that change no results; like a dry run, they may be asked for beside a driver.
    missing: what has to be filled in first, a line for each; with any, only dry runs and `reading` are let through.
    refused: why these targets cannot be asked for, a line for each reason; with any, dry runs are refused as well.
    cluster: the site that the jobs are planned for, None for this machine; the executor has to agree with it.
    before: what is to be done before Snakemake looks at the files, once this driver is the only one.
    poll_seconds: between two looks at the jobs of a killed driver.

    Snakemake tells only in `workflow.execute` whether it will run anything, and where, and builds its DAG after that:
    so this wraps `workflow.execute`. An `onstart:` in the Snakefile would replace the one that is set here.
    """
    execute = workflow.execute
    # In a job, Snakemake's executor begins by removing SLURM_CONF.
    at_start: list[Callable[[], None]] = [commands.restore_configuration]
    workflow.onstart(lambda log: [act() for act in at_start])

    def guarded(*, executor_plugin: Any, executor_settings: Any, **others: Any) -> None:
        def run() -> None:
            with patches.applied(executor_settings):
                execute(executor_plugin=executor_plugin, executor_settings=executor_settings, **others)

        targets = set(workflow.dag_settings.targets)
        if wrong := [*_unwritable(Path.cwd()), *unknown_targets(workflow), *refused(targets)]:
            sys.exit("\n".join(f"error: {line}" for line in wrong))
        only_reading = bool(targets) and targets <= set(reading)
        if only_reading:  # it starts no job, and so needs no conda
            workflow.deployment_settings.deployment_method = frozenset()
        if executor_plugin.common_settings.dryrun_exec or only_reading:
            run()
            for line in missing:  # at the end, where it is seen
                _say(f"warning: {line}")
            return None
        wrong = [*missing, *_misplaced(cluster, executor_plugin.common_settings.non_local_exec)]
        if wrong:
            sys.exit("\n".join(f"error: {line}" for line in wrong))
        commands.keep_configuration()
        folder = Path.cwd()
        prefix = getattr(executor_settings, "jobname_prefix", None)
        try:
            left_by = claim(folder).left_by
            if not prefix:  # nothing is submitted, or nothing that could be told from others' jobs
                before()
                return run()
            wait_for_orphans(folder, prefix, left_by, poll_seconds=poll_seconds)
            before()
            cancelling = CancelOnSignals(folder, prefix)
            at_start.append(cancelling.install)
            try:
                return run()
            finally:
                cancelling.finish()
        except UserError as error:
            sys.exit(f"error: {error}")
        except KeyboardInterrupt:
            sys.exit("error: interrupted")

    patches.replace_execute(workflow, guarded)


def _unwritable(folder: Path) -> list[str]:
    """What is wrong where Snakemake cannot even keep its notes: it makes them for a dry run, too."""
    notes = folder / ".snakemake"
    if os.access(notes if notes.exists() else folder, os.W_OK | os.X_OK):
        return []
    return [f"{folder}: you may not write there; work in a folder of your own (snakemake --directory FOLDER)"]


def _misplaced(cluster: str | None, submitting: bool) -> list[str]:
    """What is wrong where the plan is for a cluster's nodes and the executor is not, or the other way round."""
    if cluster and not submitting:
        return [f"site: '{cluster}' is a cluster, and this profile submits nothing; use --profile profiles/slurm"]
    if submitting and not cluster:
        return ["site: missing; use a profile that names one, or give --config site=NAME (config/sites has them)"]
    return []


@dataclass
class Claim:
    """The exclusive right to work on a folder's results, for as long as this process lives.

    `left_by` tells of a driver before it that did not end by itself; '' if there was none.
    """

    stream: TextIO
    left_by: str

    def release(self) -> None:
        """Tell the next one that this driver ended by itself. The kernel gives the lock back, whatever happens."""
        if not self.stream.closed:
            self.stream.truncate(0)
            self.stream.close()


def claim(folder: Path) -> Claim:
    """Become the folder's only driver. Raises UserError if there is one, or where nothing can be written.

    Programs started by this process do not inherit the lock (Python opens files close-on-exec), so that a daemon
    among them cannot outlive the driver with it.
    """
    path = folder / LOCK
    try:
        path.parent.mkdir(exist_ok=True)
        stream = path.open("a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; use a folder of your own") from None
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = _holder(stream) or "one that just started"
        remedy = "wait for its end or end it"
        raise UserError(f"{folder}: another driver ({who}) works on these results; {remedy}") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise UserError(f"{path}: cannot be locked: {error.strerror}") from None
        _say(f"warning: {path}: this file system has no locks ({error.strerror}): start no second driver here")
    held = Claim(stream, _holder(stream))
    stream.truncate(0)
    stream.write(f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    stream.flush()
    # After the end of Snakemake's threads: local rules write results until then.
    atexit.register(held.release)
    return held


def _holder(stream: TextIO) -> str:
    stream.seek(0)
    return " ".join(stream.read(200).split())


def wait_for_orphans(
    folder: Path,
    prefix: str,
    left_by: str = "",
    say: Callable[[str], None] = _say,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Return once no job of an earlier driver (named `{prefix}_…`, submitted for `folder`) is in the queue.

    `left_by`: the driver that was killed, if one was. What they did is kept, so that the DAG, which is built after
    this, asks for what is missing only. Raises UserError if the queue cannot be read at the start; later on, a
    controller that does not answer is waited for.
    """
    jobs = commands.jobs_named(prefix, folder)
    if left_by and not jobs:
        time.sleep(SETTLE_SECONDS)
        jobs = commands.jobs_named(prefix, folder)
    if not jobs:
        return
    whose = f"a driver that was killed ({left_by})" if left_by else "an earlier driver"
    say(f"{len(jobs)} jobs of {whose} are not over; their end is waited for, and nothing is submitted twice:")
    for job in jobs:
        say(f"  {job.id} {job.condition} {job.comment}")
    say(f"To cancel them instead: scancel {' '.join(job.id for job in jobs)}")
    told = time.monotonic()
    while jobs:
        time.sleep(poll_seconds)
        try:
            jobs = commands.jobs_named(prefix, folder)
            news = f"{len(jobs)} jobs left"
        except UserError as error:
            news = str(error)
        if time.monotonic() - told >= PROGRESS_SECONDS:
            say(f"Waiting: {news}")
            told = time.monotonic()
    say("They are over; going on with what is missing")


@dataclass
class CancelOnSignals:
    """Cancels the driver's jobs when a signal ends it.

    Snakemake alone cancels on SIGINT what it knows of (not what it is just submitting), lets jobs run to their end on
    SIGTERM, and dies of SIGHUP, leaving them. Here all three cancel whatever is in the queue under the driver's
    name, until the process ends. A second signal ends it at once: else Snakemake waits for its next look at the
    queue. Jobs get SIGTERM first, so that trainings save their state.
    """

    folder: Path
    prefix: str
    _cancelled: set[str] = field(default_factory=set)
    _thread: threading.Thread | None = None
    _hurry: threading.Event = field(default_factory=threading.Event)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def install(self) -> None:
        """Take over the signals: from the main thread, after Snakemake set its own handlers (`onstart:`)."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._thread:
            self._hurry.set()
            return
        self._thread = threading.Thread(target=self._until_the_end, args=[128 + number], daemon=True)
        self._thread.start()
        name = signal.Signals(number).name
        line = f"{name}: cancelling the jobs of this driver; it ends when that is done"
        os.write(2, f"{line} (again: at once)\n".encode())  # print could be in the midst of a line
        raise KeyboardInterrupt

    def _until_the_end(self, status: int) -> None:
        """Cancel again and again: what Snakemake submits before it stops has to be found as well."""
        hurry = False
        while not hurry:
            hurry = self._hurry.wait(CANCEL_SECONDS)
            self._cancel()
        time.sleep(CANCEL_SECONDS)
        self._cancel()
        os._exit(status)

    def finish(self) -> None:
        """After the last submission: cancel what is left, if a signal came."""
        if self._thread:
            self._cancel()

    def _cancel(self) -> None:
        with self._one_at_a_time:
            try:
                jobs = commands.jobs_named(self.prefix, self.folder, tries=1)
                # Each once: a second SIGTERM would disturb a training that is saving.
                new = [job.id for job in jobs if job.id not in self._cancelled and job.state != "COMPLETING"]
                if new:
                    commands.cancel(new, tries=1)
                self._cancelled.update(new)
            except UserError as error:
                _say(f"warning: jobs may be left, look with `squeue --me`: {error}")
