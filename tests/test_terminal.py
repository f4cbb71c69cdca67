"""What a terminal shows while the driver works: a view below whole lines; in a file, a line for each event."""

import io
import re
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from snakemake.logging import logger
from snakemake.settings.enums import Quietness
from snakemake.settings.types import OutputSettings
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_logger_plugin_torch_relay import LogHandler

from living import until
from relay.driver import end_jobs, terminal
from relay.driver.claim import say
from relay.driver.terminal import Terminal
from relay.driver.view import View
from relay.status.runs import Standing

NAMES = [f"ddp [bold]{number}[/bold]" for number in range(300)]


class Stream(io.StringIO):
    """What is written to stderr; `tty`: which is a terminal then."""

    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


def look() -> list[Standing]:
    run = SimpleNamespace(id="run-1")
    told = {"step": 1, "steps": 4, "jobs_done": 0, "jobs": 1}
    return [Standing(run=run, words=name, state="running", **told) for name in NAMES]  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a terminal of 40 columns; the logger is as it was, after the test."""
    monkeypatch.setattr(terminal, "VIEW_SECONDS", 0.02)
    for name, value in {"COLUMNS": "40", "LINES": "12", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    before, level = list(logger.handlers), logger.level
    logger.setLevel("INFO")
    yield
    logger.handlers[:] = before
    logger.setLevel(level)


def event(kind: LogEvent, **told: object) -> None:
    logger.info(str(kind), extra={"event": kind, **told})


def begun(number: int, rule: str = "segment") -> None:
    named = {"rule_name": rule, "rule_msg": f"Training [red]{number}[/red]"}
    event(LogEvent.JOB_INFO, jobid=number, wildcards={"run": f"run-{number}", "end": "4"}, **named)


def driven(stream: Stream, monkeypatch: pytest.MonkeyPatch, *, viewed: bool = False, **settings: object) -> str:
    """What is printed of one job, while other threads print as well; first its view, if there is one."""
    monkeypatch.setattr(sys, "stderr", stream)
    LogHandler(OutputSettings(**settings), None)  # type: ignore[arg-type]
    shown = Terminal.of_this_call(OutputSettings())
    rules = {"local": ["here"], "site": None, "meanwhile": lambda done, total: None, "submitting": False}
    view = View(SimpleNamespace(look=look, news=""))  # type: ignore[arg-type]
    with shown.driving(view, **rules):  # type: ignore[arg-type]
        begun(1)
        if viewed:
            until(lambda: NAMES[0] in stream.getvalue(), "the view stands there")
        others = [threading.Thread(target=lambda: [say("said " + "x" * 60) for _ in range(20)]) for _ in range(3)]
        for other in others:
            other.start()
        logger.warning("a warning of [bold]Snakemake[/bold]")
        for other in others:
            other.join()
        begun(2, rule="here")
        stream.write("printed by a local rule\n")
        time.sleep(0.1)
        stream.write("the local rule ends\n")
        event(LogEvent.JOB_FINISHED, job_id=2)  # from here on the view may stand there again
        event(LogEvent.JOB_FINISHED, job_id=1)
    return stream.getvalue()


def test_in_a_file_there_is_a_line_for_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = driven(Stream(tty=False), monkeypatch).splitlines()
    assert lines.count("said " + "x" * 60) == 60
    first, second, done = (line.partition(" ")[2] for line in lines if line[:1].isdigit())
    assert (first, second) == ("Training [red]1[/red]", "Training [red]2[/red]")
    assert re.fullmatch(r"done after [0-9.]+ s: Training \[red\]1\[/red\]", done)
    assert "a warning of [bold]Snakemake[/bold]" in lines
    assert not [line for line in lines if "\x1b" in line or NAMES[0] in line]


def test_ctrl_c_in_the_midst_of_a_line_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake's handler keeps it to itself."""
    monkeypatch.setattr(end_jobs, "_received", [])
    monkeypatch.setattr(terminal.ColorizingTextHandler, "emit", lambda *_: end_jobs._received.append("SIGINT"))
    record = logger.makeRecord("test", 20, __file__, 1, "a line", (), None)
    with pytest.raises(KeyboardInterrupt):
        Terminal().emit(record)
    Terminal().emit(record)  # the next one is said


def test_on_a_terminal_the_view_stands_below_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = driven(Stream(tty=True), monkeypatch, viewed=True)
    assert NAMES[20] not in text  # no more than the terminal's lines
    assert text.count("said " + "x" * 60 + "\n") == 60
    assert "a warning of [bold]Snakemake[/bold]" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    before, _, rest = text.partition("printed by a local rule")
    while_local_rules_print, _, after = rest.partition("the local rule ends")
    assert ("\x1b[1A" in before, "\x1b[1A" in while_local_rules_print) == (True, False)
    assert re.search(r"done after [0-9.]+ s: Training \[red\]1\[/red\]$", after.rstrip())


def test_who_wants_no_colours_or_is_quiet_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in driven(Stream(tty=True), monkeypatch, viewed=True)
    logger.handlers.clear()
    text = driven(Stream(tty=True), monkeypatch, quiet={Quietness.ALL})
    assert not [line for line in text.splitlines() if not line.startswith(("said ", "printed ", "the local rule "))]


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_without_a_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    assert "\x1b[1A" not in driven(Stream(tty=True), monkeypatch)
