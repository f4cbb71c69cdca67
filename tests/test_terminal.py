"""What the terminal keeps of the Slurm executor's words, held against the installed version of it."""

from __future__ import annotations

import logging

from rich.text import Text
from snakemake_interface_logger_plugins.common import LogEvent

from relay.base.plain_text import plain_text
from relay.driver.terminal import Terminal


def test_something_may_be_done_after_each_job() -> None:
    done: list[tuple[int, int]] = []
    record = logging.makeLogRecord({"event": LogEvent.PROGRESS, "done": 3, "total": 9})
    assert Terminal(meanwhile=lambda *counts: done.append(counts)).filter(record)
    assert done == [(3, 9)]


def test_a_table_has_no_control_characters() -> None:
    assert plain_text(Text("a\x1b[2Jb\u202e"), width=80) == r"a\x1b[2Jb\u202e"
