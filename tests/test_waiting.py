"""What is said of jobs that do not start, and of a Slurm that does not answer."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.driver.orphans import wait_for_jobs
from relay.driver.waiting import News
from relay.slurm import commands
from relay.slurm.commands import QueuedJob
from relay.spec.labels import counted

LOGGER = logging.getLogger("relay.tests")


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def news(clock: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> News:
    caplog.set_level(logging.INFO)
    return News(LOGGER, lambda: clock.now)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


def pending(reason: str, *ids: int) -> list[QueuedJob]:
    return [QueuedJob(str(id), "relay", "PENDING", "", "", reason) for id in ids]


def test_what_needs_somebody_is_said_at_once_and_later(
    news: News, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    held = pending("JobHeldUser", 1, 2)
    news.waiting(held)
    (line,) = said(caplog)
    assert line == (
        "2 jobs do not start: PENDING (JobHeldUser): release with `scontrol release 1 2`, or cancel with `scancel 1 2`"
    )
    news.waiting(held)
    assert said(caplog) == []
    news.waiting(held + pending("BadConstraints", 3))
    assert [re.split(r"\W+", text)[:2] for text in said(caplog)] == [["1", "job"]]
    clock.now += 31
    news.waiting(held)
    assert [text[:20] for text in said(caplog)] == ["Waiting for Slurm to", line[:20]]
    news.waiting(pending("Priority", 1, 2))  # released
    news.waiting(pending("JobHeldUser", *range(20)))
    (line,) = said(caplog)
    assert line.startswith("20 jobs do not start: ")
    assert line.endswith("or cancel with `scancel 0 1 2 3 4 5 6 7 8 9 …`")


@pytest.mark.parametrize(
    "reason", ["QOSMinCpuNotSatisfied", "QOSNotAllowed", "MaxMemPerLimit", "QOSMaxNodePerJobLimit"]
)
def test_what_can_never_start_is_to_be_cancelled(news: News, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    news.waiting(pending(reason, 1))
    assert "cannot start as submitted; cancel with `scancel 1`" in said(caplog)[0]


def test_an_outage_is_said_from_the_second_look_on(news: News, clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    news.unanswered()
    news.answered()
    assert said(caplog) == []  # one slip
    told = []
    for second in range(0, 300, 10):
        clock.now += 10
        news.unanswered()
        told += [second] * len(said(caplog))
    assert told == [10, 40, 90, 190]
    news.answered()
    news.answered()
    assert said(caplog) == ["Slurm answers again"]


def test_a_limit_is_said_ever_less_often_though_jobs_are_submitted(
    news: News, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told = []
    for second in range(0, 300, 10):
        clock.now += 10
        news.full("cpu")
        lines = said(caplog)
        told += [second] * len(lines)
        assert all("no further job of partition cpu" in line for line in lines)
        news.submitted("cpu")
    assert told == [10, 40, 90, 190]
    news.away("cpu", "its controller is busy or down")
    clock.now += 10
    news.away("cpu", "its controller is busy or down")
    news.submitted("cpu")
    assert [line.partition(" for ")[0] for line in said(caplog)] == [
        "Slurm has taken no job of partition cpu",
        "Slurm takes jobs of partition cpu again",
    ]


def test_one_job_is_told_as_one(tmp_path: Path, monkeypatch, capsys) -> None:
    queue = iter([[QueuedJob("7", "relay_x", "RUNNING", "/", "rule_first")], []])
    monkeypatch.setattr(commands, "jobs_named", lambda *_: next(queue))
    wait_for_jobs(tmp_path, "relay", "", poll_seconds=0)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Waiting for the end of 1 job of an earlier driver; nothing is submitted twice:"
    assert (counted(1, "process"), counted(1200, "process")) == ("1 process", "1,200 processes")
