"""What Snakemake says on the terminal: less than in its log file, where everything stays."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from relay.base.clock import clock, duration
from relay.driver.progress import Progress, Training
from relay.driver.refused import Refused
from relay.driver.view import Job, View

SEGMENT = "segment"  # the rule of the jobs that train
STREAM = "DefaultStreamHandler"
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
# Beside a view: what Snakemake says of itself and of each job, and the rules that only keep books.
OF_EACH_JOB = (LogEvent.JOB_STARTED, LogEvent.SHELLCMD, LogEvent.RESOURCES_INFO)
OF_THE_GRAPH = ("Select jobs to execute", "Execute ", "Touching output file ", "Removing temporary output ")
STILL_SAID = ("Nothing to be done", "Complete log")
BOOKKEEPING = ("start", "summary", "record_plan", "all")


class Terminal(logging.Filter):
    """Keeps from the terminal what `retries` says in its own words, and knows from Snakemake's events what runs.

    `said_of`: what the executor said of each job that failed, by Snakemake's number of it. `progress` shows the rest;
    its view, if it has one, or short lines in a log take the place of Snakemake's lines about each job. `refused` tells
    of gates that refuse a setting. `local`: the names of rules that run on this machine wherever the jobs run; they
    may be added later. `site`: the cluster that the jobs are planned for. `meanwhile` is called after each job that has
    ended well, with how many of how many are done.
    """

    def __init__(
        self,
        local: Collection[str] = (),
        site: str | None = None,
        meanwhile: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        super().__init__()
        self.local, self.site, self.meanwhile = local, site, meanwhile
        self.said_of: dict[int, str] = {}
        self.progress = Progress()
        self.refused = Refused()

    def filter(self, record: logging.LogRecord) -> bool:
        told: dict[str, Any] = vars(record)
        self.progress.clear()
        said = not self.progress.short
        match told.get("event"):
            case LogEvent.JOB_INFO:
                self._begun(told)
                return said
            case LogEvent.JOB_FINISHED:
                self._ended(told["job_id"], done=True)
                self.refused.tell()
                return said
            case LogEvent.PROGRESS:
                self.progress.done = (told["done"], told["total"])
                with suppress(OSError):  # what a full disk means is told by the jobs
                    self.meanwhile(*self.progress.done)
                return said
            case LogEvent.JOB_ERROR:
                self._ended(told["jobid"])
                self.said_of[told["jobid"]] = _first_sentences(told.get("rule_msg") or "")
                return False
            case LogEvent.ERROR:
                return told.get("exception") not in COMMAND_FAILED
            case LogEvent.RUN_INFO:  # how many jobs there are: a log has it
                return not self.progress.drawn
            case event if event in OF_EACH_JOB:
                return said
            case None:
                for beginning, line in LEFT_TO_SLURM.items():
                    if str(record.msg).startswith(beginning):
                        logger.info(line.format(self.site))
                        return False
                return self._still_said(record) and not str(record.msg).startswith(LEFT_OUT)
        return True

    def _still_said(self, record: logging.LogRecord) -> bool:
        """Whether a line is shown beside a view: warnings, the driver's own lines, and Snakemake's last ones."""
        if self.progress.short and str(record.msg).startswith(OF_THE_GRAPH):
            return False
        own = "/relay/" in record.pathname
        if not self.progress.drawn or record.levelno > logging.INFO or own:
            return True
        return str(record.msg).startswith(STILL_SAID)

    def _begun(self, told: dict[str, Any]) -> None:
        """A job was started or submitted. Of a local rule's, which may print by itself, a line says so."""
        words = (told.get("rule_msg") or told["rule_name"]).splitlines()[0]
        run = told["wildcards"]["run"] if told["rule_name"] == SEGMENT else None
        if run:
            self.progress.training[told["jobid"]] = Training(run, int(told["wildcards"]["end"]), words)
        local = told["rule_name"] in (*self.local, *BOOKKEEPING)
        job = self.progress.jobs[told["jobid"]] = Job(words, time.time(), local, run)
        shown = job.local or not self.progress.drawn
        if self.progress.short and shown and told["rule_name"] not in BOOKKEEPING:
            self.progress.say(f"{clock(job.since)} {words}")

    def _ended(self, number: int, *, done: bool = False) -> None:
        """A job has ended. Beside a view a line says so, of a job that is not a local rule's."""
        self.progress.training.pop(number, None)
        job = self.progress.jobs.pop(number, None)
        if done and job and not job.local and self.progress.short:
            now = time.time()
            self.progress.say(f"{clock(now)} done after {duration(now - job.since)}: {job.words}")

    @contextmanager
    def installed(self, view: View | None = None) -> Iterator[None]:
        """While this lasts, Snakemake's own handler of the terminal is filtered; a logger plugin's is left alone.

        `view` is what a terminal shows; without Snakemake's own handler there is none.
        """
        handlers = [handler for handler in logger.handlers if handler.name == STREAM]
        self.progress.view = view if handlers else None
        for handler in handlers:
            handler.addFilter(self)
        try:
            yield
        finally:
            self.progress.view = None
            for handler in handlers:
                handler.removeFilter(self)


def _first_sentences(message: str) -> str:
    """What Slurm said, without the plugin's advice and its whole call of sbatch."""
    for more in ("For further error details", "Detailed failure reason", "\n    sbatch call:"):
        message = message.partition(more)[0]
    return message.strip()
