"""What the terminal keeps of the Slurm executor's words, held against the installed version of it."""

from __future__ import annotations

import logging
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from rich.text import Text
from snakemake_interface_logger_plugins.common import LogEvent

from relay.base import ending
from relay.base.ending import Ending
from relay.base.errors import UserError
from relay.base.plain_text import plain_text
from relay.comparison import drawing
from relay.driver.terminal import Terminal
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
