"""A signal that ends the driver ends its jobs, so that trainings save their state; a second one ends it at once."""

import math
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from relay.base.errors import UserError
from relay.driver.claim import say
from relay.slurm import commands
from relay.slurm.held import Held

# Slurm sends SIGUSR1 or SIGUSR2 where `--signal` asks for it, as a warning before the end of a job's time.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SAY_SECONDS = 0.5  # that a line may take which is said while another one is
_received: list[str] = []  # names, in the order of arrival


def interrupted() -> bool:
    """Whether a signal is ending this driver: what is left to do is then left to the next call."""
    return bool(_received)


@dataclass
class SlurmJobs:
    """What is in Slurm's queue under the driver's name."""

    pause_seconds = 2.0  # between two looks for further jobs
    on_first = "cancelling the jobs of this driver; it ends when that is done (again: at once)"  # the user is told
    on_second = "ending at once"

    folder: Path
    prefix: str
    _signalled: set[str] = field(default_factory=set)

    def end(self) -> None:
        """Ask the jobs to end that were not asked yet: a second SIGTERM would disturb a save."""
        try:
            jobs = commands.jobs_named(self.prefix, self.folder, tries=1)
            new = [job.id for job in jobs if job.id not in self._signalled and job.state != "COMPLETING"]
            if new:
                commands.cancel(new, tries=1)
            self._signalled.update(new)
        except UserError as error:
            say(f"warning: jobs may be left, look with `squeue --me`: {error}")


@dataclass
class LocalJobs:
    """This process's children. A job passes the signal on to whatever it started."""

    pause_seconds = 0.2
    on_first = "the jobs save and end, then this call ends (again: at once)"
    on_second = "ending at once; the jobs save and end by themselves, and the next call waits for them"

    _signalled: set[str] = field(default_factory=set)

    def end(self) -> None:
        """As those in Slurm's queue."""
        for child in psutil.Process().children():
            process = f"{child.pid} {child.create_time()}"
            if process not in self._signalled:
                self._signalled.add(process)
                with suppress(psutil.NoSuchProcess):  # it has just ended; the others are still to be asked
                    child.terminate()


@dataclass
class EndOnSignals:
    """Ends the driver's jobs when a signal ends the driver.

    Snakemake alone ends on SIGINT, of jobs in a queue, what it knows of (not what it is just submitting), and no local
    job; it lets jobs run to their end on SIGTERM, and dies of the others, leaving them. Here all of them end all jobs,
    until the process ends. A second signal ends it at once.
    """

    jobs: SlurmJobs | LocalJobs
    _thread: threading.Thread | None = None
    _hurry: threading.Event = field(default_factory=threading.Event)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def install(self) -> None:
        """Take over the signals: from the main thread, after Snakemake set its own handlers (`onstart:`)."""
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._on_signal)

    def finish(self) -> None:
        """After the last submission: end what is left, if a signal came."""
        if self._thread:
            self._end_jobs()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._thread:
            if not self._hurry.is_set():
                _say_soon(f"{name}: {self.jobs.on_second}")
            self._hurry.set()
            return
        _received.append(name)
        self._thread = threading.Thread(target=self._until_the_end, args=[128 + number], daemon=True)
        self._thread.start()
        _say_soon(f"{name}: {self.jobs.on_first}")
        raise KeyboardInterrupt

    def _until_the_end(self, status: int) -> None:
        """Look for jobs again and again: what Snakemake starts before it stops has to be found as well."""
        hurry = False
        while not hurry:
            self._end_jobs()
            hurry = self._hurry.wait(self.jobs.pause_seconds)
        self._end_jobs()
        time.sleep(self.jobs.pause_seconds)
        self._end_jobs()
        os._exit(status)

    def _end_jobs(self) -> None:
        with self._one_at_a_time:
            self.jobs.end()


def end_before(held: Held) -> None:
    """Have this driver end as if it was told to, while its allocation leaves trainings the time to save.

    Raises UserError where that time has come.
    """
    if (seconds := held.seconds_of_work) == math.inf:
        return
    if seconds <= 0:
        raise UserError(f"{held.words}: too short to begin; give the same command in the next one")

    def end() -> None:
        say(f"{held.words}; the same command goes on in the next one")
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _say_soon(line: str) -> None:
    """Say a line from another thread: a signal may have come while this one writes, and holds what writers wait for."""
    thread = threading.Thread(target=say, args=[line], daemon=True)
    thread.start()
    thread.join(SAY_SECONDS)
