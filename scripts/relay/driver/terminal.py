"""What the driver's terminal shows: less than Snakemake's log file has, and the jobs under way by rich's live view.

The logger plugin in `workflow/plugins` puts it in the place of Snakemake's own handler.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler
from typing import Any

from rich.live import Live
from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter, logger
from snakemake.settings.enums import Quietness
from snakemake.settings.types import OutputSettings
from snakemake_interface_logger_plugins.common import LogEvent

from relay.base.clock import clock, duration
from relay.driver.claim import say
from relay.driver.console import console
from relay.driver.end_jobs import interrupted
from relay.driver.refused import Refused
from relay.driver.view import Job, View, described

SNAKEMAKES = "DefaultStreamHandler"  # its own handler
PLUGIN = "torch-relay"  # the logger plugin in `workflow/plugins`
SEGMENT = "segment"  # the rule of the jobs that train
VIEW_SECONDS = 3.0  # between two views on a terminal. Measured jobs run beside the driver: it does not do more
LINE_SECONDS = 60.0  # between two lines on each training elsewhere
# A failed shell command, in words for Snakemake's developers: the block of `retries` says it for the user.
COMMAND_FAILED = ("RuleException", "CalledProcessError")
LEFT_OUT = (
    "Trying to restart job ",
    "Removing output files of failed job ",
    "Exiting because a job execution failed.",
    # Of the executor, where the site's file has decided.
    "No job memory information ",
    "No account was given, not able to get ",
    "Unable to guess SLURM account.",
    "Both 'sacctmgr' and 'sshare' returned empty results ",
)
# What the executor says of a site's file that leaves a choice to Slurm, and what is said instead.
LEFT_TO_SLURM = {
    "No SLURM account given, ": "account: the file of site {!r} names none, so Slurm takes yours (docs/sites.md)",
    "No partition was given ": "partition: the file of site {!r} names none, so Slurm takes its own (docs/sites.md)",
}
# Beside a view: what Snakemake says of itself, and the rules that only keep books.
OF_THE_GRAPH = ("Select jobs to execute", "Execute ", "Touching output file ", "Removing temporary output ")
STILL_SAID = ("Nothing to be done", "Complete log")
BOOKKEEPING = ("start", "summary", "record_plan", "all")


class Terminal(ColorizingTextHandler):
    """Snakemake's handler, which also keeps from the terminal what is said in other words, while this driver works.

    `settings` are Snakemake's of its output. `said_of`: what the executor said of each job that failed, by Snakemake's
    number of it. `jobs` are under way, by the same number. `done`: how many of how many jobs are done, None where that
    is not known yet. `view`: what takes the place of Snakemake's lines about each job, drawn on a terminal, short lines
    elsewhere; None: these lines are shown.
    """

    def __init__(self, settings: OutputSettings | None = None) -> None:
        chosen = self.output_settings = settings or OutputSettings()
        colourless = chosen.nocolor or bool(os.environ.get("NO_COLOR"))
        stream = sys.stdout if chosen.stdout else sys.stderr
        shown = DefaultFilter(chosen.quiet, chosen.debug_dag, chosen.verbose, chosen.dryrun, chosen.printshellcmds)
        words = DefaultFormatter(chosen.quiet, chosen.show_failed_logs)
        super().__init__(nocolor=colourless, stream=stream, formatter=words, filter=shown)
        self.console = console(stream, colourless=colourless)
        self.said_of: dict[int, str] = {}
        self.jobs: dict[int, Job] = {}
        self.done: tuple[int, int] | None = None
        self.view: View | None = None
        self._live: Live | None = None
        self.only_hears = False

    @classmethod
    def of_this_call(cls, settings: OutputSettings) -> Terminal:
        """The one that Snakemake writes to. Without the logger plugin it takes the place of Snakemake's own handler;
        beside another plugin, which writes to the terminal, it only hears what is said.
        """
        if present := next((handler for handler in logger.handlers if isinstance(handler, cls)), None):
            if [*settings.log_handler_settings] == [PLUGIN]:  # nobody else reads what is queued for another thread
                for queue in [each for each in logger.handlers if isinstance(each, QueueHandler)]:
                    logger.removeHandler(queue)
            return present
        terminal = cls(settings)
        own = next((handler for handler in logger.handlers if handler.get_name() == SNAKEMAKES), None)
        if own:
            logger.removeHandler(own)
        terminal.only_hears = own is None
        logger.addHandler(terminal)
        return terminal

    @contextmanager
    def driving(
        self,
        view: View | None,
        *,
        local: Collection[str],
        site: str | None,
        meanwhile: Callable[[int, int], None],
        submitting: bool,
    ) -> Iterator[None]:
        """While this lasts, it shows what this driver does; `view`, where Snakemake's own lines are not asked for.

        `local`: the names of rules that run on this machine wherever the jobs run. `site`: the cluster that the jobs
        are planned for. `meanwhile` is called after each job that has ended well, with how many of how many are done.
        `submitting`: whether jobs go elsewhere, where no lines are printed on each training.
        """
        chosen = self.output_settings
        quiet = bool({Quietness.ALL, Quietness.PROGRESS} & set(chosen.quiet or ()))
        own_lines = chosen.verbose or chosen.printshellcmds or chosen.debug_dag
        self.view = None if quiet or own_lines or self.only_hears else view
        self.local, self.site, self.meanwhile, self.refused = local, site, meanwhile, Refused()
        over = threading.Event()
        thread = threading.Thread(target=self._show, args=[over, not submitting and not quiet], daemon=True)
        self.filters.insert(0, self._hears)  # what is not shown, as with --quiet, is heard all the same
        self.addFilter(self._is_said)
        thread.start()
        try:
            yield
        finally:
            try:
                over.set()
                thread.join()
            finally:
                self.removeFilter(self._hears)
                self.removeFilter(self._is_said)
                self._take_away()

    # What Snakemake says

    def emit(self, record: logging.LogRecord) -> None:
        before = interrupted()
        if not self.only_hears:
            with suppress(BrokenPipeError):  # Ctrl-C has ended the `tee` that read it, and jobs are still to be ended
                super().emit(record)
        # Snakemake's handler keeps it to itself, and the call would go on.
        if interrupted() and not before and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    def _hears(self, record: logging.LogRecord) -> bool:
        event: dict[str, Any] = vars(record)
        if event.get("event") == LogEvent.JOB_ERROR:
            self.said_of[event["jobid"]] = _first_sentences(event.get("rule_msg") or "")
        return True

    def _is_said(self, record: logging.LogRecord) -> bool:
        """Whether a line of Snakemake's is shown; what its event tells of jobs is kept."""
        event: dict[str, Any] = vars(record)
        said = self.view is None
        match event.get("event"):
            case LogEvent.JOB_INFO:
                self._begun(event)
            case LogEvent.JOB_FINISHED:
                self._ended(event["job_id"], done=True)
                self.refused.tell()
            case LogEvent.PROGRESS:
                self.done = (event["done"], event["total"])
                with suppress(OSError):  # what a full disk means is told by the jobs
                    self.meanwhile(*self.done)
            case LogEvent.JOB_ERROR:
                self._ended(event["jobid"])
                return False
            case LogEvent.ERROR:
                return event.get("exception") not in COMMAND_FAILED
            case LogEvent.RUN_INFO:  # how many jobs there are: a log has it
                return not self._draws
            case LogEvent.JOB_STARTED | LogEvent.SHELLCMD | LogEvent.RESOURCES_INFO:
                pass
            case None:
                return self._is_said_besides(record)
            case _:
                return True
        return said

    def _is_said_besides(self, record: logging.LogRecord) -> bool:
        """The same of a line without an event. Beside a view: warnings, the driver's own lines, and the last ones."""
        words = str(record.msg)
        for beginning, line in LEFT_TO_SLURM.items():
            if words.startswith(beginning):
                logger.info(line.format(self.site))
                return False
        if words.startswith(LEFT_OUT) or (self.view and words.startswith(OF_THE_GRAPH)):
            return False
        own = "/relay/" in record.pathname
        return not self._draws or record.levelno > logging.INFO or own or words.startswith(STILL_SAID)

    def _begun(self, event: dict[str, Any]) -> None:
        """A job was started or submitted. Of a local rule's, which may print by itself, a line says so."""
        rule = event["rule_name"]
        words = (event.get("rule_msg") or rule).splitlines()[0]
        run, end = (event["wildcards"]["run"], int(event["wildcards"]["end"])) if rule == SEGMENT else (None, 0)
        job = Job(words, time.time(), rule in (*self.local, *BOOKKEEPING), run, end)
        self.jobs[event["jobid"]] = job
        if job.local:
            self._take_away()
        if self.view and rule not in BOOKKEEPING and (job.local or not self._draws):
            say(f"{clock(job.since)} {words}")

    def _ended(self, number: int, *, done: bool = False) -> None:
        """A job has ended. Beside a view a line says so, of a job that is not a local rule's."""
        job = self.jobs.pop(number, None)
        if not self.jobs:  # what is shown at the end may come now
            self._take_away()
        if done and job and not job.local and self.view:
            now = time.time()
            say(f"{clock(now)} done after {duration(now - job.since)}: {job.words}")

    # What is under way

    @property
    def _draws(self) -> bool:
        """Whether a view is drawn, not told in lines."""
        return self.view is not None and self.console.is_interactive

    def _is_quiet(self) -> bool:
        """Whether there are jobs, and none of them prints by itself."""
        jobs = list(self.jobs.values())
        return bool(jobs) and not any(job.local for job in jobs)

    def _show(self, over: threading.Event, in_lines: bool) -> None:
        with suppress(OSError):  # a terminal that was closed
            while not over.wait(VIEW_SECONDS if self._draws else LINE_SECONDS):
                if self._draws:
                    self._draw()
                elif in_lines and not self.console.is_interactive:
                    for line in filter(None, map(described, list(self.jobs.values()))):
                        say(line)

    def _draw(self) -> None:
        """Draw the view again, while nothing but jobs with logs of their own is under way: local rules may print."""
        if not self.view or not self._is_quiet():
            return
        try:
            lines = self.view.lines(self.console, list(self.jobs.values()), self.done)
        except OSError:  # of a network's disk, for a moment: it is looked at again
            return
        except Exception:  # without the view, Snakemake's own lines are printed again
            self.view = None
            self._take_away()
            traceback.print_exc()
            return
        with self.lock:
            if self._is_quiet():  # as it still is
                if not self._live:
                    self._live = Live(
                        console=self.console, auto_refresh=False, transient=True, redirect_stdout=sys.stdout.isatty()
                    )
                    self._live.start()
                    self.console.show_cursor()  # so that one who kills the driver has it
                    self.setStream(sys.stderr)  # which is rich's now: what is printed comes above the view
                with self.console:
                    self._live.update(lines, refresh=True)

    def _take_away(self) -> None:
        """Take the view away, so that others can print."""
        with self.lock:
            if self._live:
                with suppress(OSError), self.console:  # a terminal that was closed
                    self._live.stop()
                self._live = None
                self.setStream(sys.stderr)


def _first_sentences(message: str) -> str:
    """What Slurm said, without the plugin's advice and its whole call of sbatch."""
    for more in ("For further error details", "Detailed failure reason", "\n    sbatch call:"):
        message = message.partition(more)[0]
    return message.strip()
