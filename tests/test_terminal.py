"""What the terminal keeps of the Slurm executor's words, held against the installed version of it."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from rich.text import Text
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from relay.base import ending
from relay.base.ending import Ending
from relay.base.errors import UserError
from relay.base.plain_text import plain_text
from relay.comparison import drawing
from relay.driver.terminal import STREAM, Terminal
from relay.driver.view import View
from relay.environments import pip
from relay.process import recorded
from relay.run_folder import faults


def test_something_may_be_done_after_each_job() -> None:
    done: list[tuple[int, int]] = []
    record = logging.makeLogRecord({"event": LogEvent.PROGRESS, "done": 3, "total": 9})
    assert Terminal(meanwhile=lambda *counts: done.append(counts)).filter(record)
    assert done == [(3, 9)]


def test_a_table_has_no_control_characters() -> None:
    assert plain_text(Text("a\x1b[2Jb\u202e"), width=80) == r"a\x1b[2Jb\u202e"


def test_a_log_has_a_line_for_a_jobs_begin_and_one_for_its_end() -> None:
    """As a terminal with a view has them; Snakemake's own stay in its log file."""
    handler, shown = logging.StreamHandler(io.StringIO()), io.StringIO()
    handler.name, handler.stream = STREAM, shown
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    terminal = Terminal(local=["comparison"])
    terminal.progress.region.stream = shown
    view = View(SimpleNamespace(news="", look=list))
    of_job = {"event": LogEvent.JOB_INFO, "wildcards": {}, "rule_msg": None}
    with terminal.installed(view):
        logger.info("Select jobs to execute...")
        logger.info("localrule all:\n    input: a, b", extra=of_job | {"jobid": 0, "rule_name": "all"})
        for number, rule in ((1, "gate"), (2, "comparison")):
            logger.info(
                f"Job {number}", extra=of_job | {"jobid": number, "rule_name": rule, "rule_msg": f"Doing {rule}"}
            )
        for number in (0, 1, 2):
            logger.info("Finished jobid", extra={"event": LogEvent.JOB_FINISHED, "job_id": number})
        logger.info("Complete log(s): x")
    logger.removeHandler(handler)
    logger.setLevel(before)
    assert [line.split(maxsplit=1)[1] for line in shown.getvalue().splitlines()] == [
        "Doing gate",
        "Doing comparison",
        "done after 0 s: Doing gate",
        "log(s): x",
    ]


def test_nor_have_errors_and_what_jobs_and_pip_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor passwords of addresses: all who can read the results see them."""
    harm, shown = "a\x1b]0;b\x07 https://me:secret@x/y", r"a\x1b]0;b\x07 https://***@x/y"
    assert str(UserError(harm)) == shown
    faults.record(tmp_path, RuntimeError(harm))
    assert "secret" not in next(tmp_path.glob("fault*")).read_text()
    assert (faults.collect(tmp_path) or {})["error"] == f"RuntimeError: {shown}"
    ending.record(Ending(1, harm), tmp_path / "log")
    assert (ending.read(tmp_path / "log") or Ending(0, "")).what == shown
    assert pip.complaint([f"ERROR: {harm}"]) == shown
    monkeypatch.setenv("TORCH_HOME", harm)
    assert recorded.variables()["TORCH_HOME"] == shown


def test_nor_has_a_picture() -> None:
    with drawing.styled("salt"):
        figure = Figure()
        figure.subplots().set_title("a\x1b<b>")
        ElementTree.fromstring(drawing.standalone(drawing.svg_of(figure, "x")))  # XML has none
