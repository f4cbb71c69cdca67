"""What Snakemake says on the terminal: less than in its log file, where everything stays."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from relay.driver.progress import Progress, Training
from relay.driver.refused import Refused

SEGMENT = "segment"  # the rule of the jobs that train
STREAM = "DefaultStreamHandler"
# A failed shell command, in words for Snakemake's developers: the block of `retries` says it for the user.
COMMAND_FAILED = ("RuleException", "CalledProcessError")
LEFT_OUT = (
    "Trying to restart job ",
    "Removing output files of failed job ",
    "Exiting because a job execution failed.",
    "No job memory information ",  # the site's file says that none is asked for
)


class Terminal(logging.Filter):
    """Keeps from the terminal what `retries` says in its own words, and knows from Snakemake's events what trains.

    `said_of`: what the executor said of each job that failed, by Snakemake's number of it. `progress` shows the rest.
    `refused` tells of gates that refuse a setting.
    """

    def __init__(self) -> None:
        super().__init__()
        self.said_of: dict[int, str] = {}
        self.progress = Progress()
        self.refused = Refused()

    def filter(self, record: logging.LogRecord) -> bool:
        told: dict[str, Any] = vars(record)
        self.progress.clear()
        match told.get("event"):
            case LogEvent.JOB_INFO if told["rule_name"] == SEGMENT:
                run, end = told["wildcards"]["run"], int(told["wildcards"]["end"])
                self.progress.training[told["jobid"]] = Training(run, end, told["rule_msg"].splitlines()[0])
            case LogEvent.JOB_FINISHED:
                self.progress.training.pop(told["job_id"], None)
                self.refused.tell()
            case LogEvent.JOB_ERROR:
                self.progress.training.pop(told["jobid"], None)
                self.said_of[told["jobid"]] = _first_sentences(told.get("rule_msg") or "")
                return False
            case LogEvent.ERROR:
                return told.get("exception") not in COMMAND_FAILED
            case None:
                return not str(record.msg).startswith(LEFT_OUT)
        return True

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While this lasts, Snakemake's own handler of the terminal is filtered; a logger plugin's is left alone."""
        handlers = [handler for handler in logger.handlers if handler.name == STREAM]
        for handler in handlers:
            handler.addFilter(self)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(self)


def _first_sentences(message: str) -> str:
    """What Slurm said, without the plugin's advice."""
    return message.partition("For further error details")[0].partition("Detailed failure reason")[0].strip()
