"""The view that a terminal shows while jobs are under way."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay.base.clock import clock
from relay.driver.region import SETTLE_SECONDS, Region
from relay.driver.view import Job, View
from relay.status.runs import Standing, State
from screen import screen
from test_status import a_run


def settled(region: Region) -> Region:
    region._cleared = time.monotonic() - 2 * SETTLE_SECONDS
    return region


# A region at the bottom of a terminal


def test_lines_are_drawn_in_the_place_of_those_before() -> None:
    stream = io.StringIO()
    region = Region(stream)
    stream.write("before\n")
    region.draw(["one", "a long line", "three"])
    region.draw(["ONE", "short"])
    assert screen(stream.getvalue()) == ["before", "ONE", "short", ""]


def test_what_is_printed_stands_above() -> None:
    stream = io.StringIO()
    region = Region(stream)
    region.draw(["one", "two"])
    region.clear("a message\n")
    stream.write("another\n")
    settled(region).draw(["ONE"])
    region.clear()
    stream.write("the end\n")
    assert screen(stream.getvalue()) == ["a message", "another", "the end", ""]


# What is in the view


@dataclass
class Runs:
    """Runs that stand as they are told to."""

    standings: Sequence[Standing]
    news: str = ""

    def look(self) -> Sequence[Standing]:
        return self.standings


def stands(number: int, state: State, **more: Any) -> Standing:
    told = {"step": 100, "steps": 300, "jobs_done": 1, "jobs": 3} | more
    return Standing(run=a_run(number), words=f"cpu, repeat {number}", state=state, **told)


RUNNING = stands(1, "running", samples_per_second=1280.0, seconds_left=600.0)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)


def lines(view: View, jobs: Sequence[Job] = (), width: int = 100, height: int = 30) -> list[str]:
    return [line.rstrip() for line in screen("\n".join(view.lines(jobs, (3, 14), width, height)))]


def test_the_view_has_what_is_under_way_and_how_much_is_done(plain: None) -> None:
    at = time.mktime((2026, 1, 2, 12, 5, 0, 0, 0, -1))
    gate = Job("Gate: does ddp compute the same?", at)
    training = Job("Training cpu, repeat 1", at, run="cpu-1")
    starting = Job("Training cpu, repeat 4", at, run="cpu-4")
    waits, done, later = stands(2, "queued", why="Priority"), stands(3, "done", step=300), stands(4, "to do", step=0)
    view = View(Runs([done, later, waits, RUNNING], news="queue: 2 jobs of this folder"))
    found = lines(view, [gate, training, starting])
    ends = time.strftime("%H:%M", time.localtime(time.time() + 600))
    assert found[0].split() == ["run", "state", "step", "jobs", "samples/s", "ends", "about"]
    assert found[1].split() == f"cpu, repeat 1 running 100 of 300 1 of 3 1,280 {ends}".split()
    assert found[2].split() == ["cpu,", "repeat", "2", "queued", "100", "of", "300", "1", "of", "3", "–", "–"]
    assert found[3:] == [
        f"since {clock(at)}: Gate: does ddp compute the same?",
        f"since {clock(at)}: Training cpu, repeat 4",
        "queued: cpu, repeat 2: Priority",
        "runs: 1 running, 1 queued, 1 to do, 1 done; 42% of the training is done",
        "queue: 2 jobs of this folder",
        "jobs: 3 of 14 done, 3 under way",
    ]


@pytest.mark.parametrize(("width", "height"), [(40, 8), (20, 3)])
def test_no_line_is_too_wide_and_there_are_not_too_many(plain: None, width: int, height: int) -> None:
    many = [stands(number, "queued", why="Resources " * 9) for number in range(60)]
    found = lines(View(Runs([*many, RUNNING])), [Job("Gate: " + "x" * 300, 0.0)], width, height)
    assert len(found) <= height
    assert max(len(line) for line in found) <= width


def test_where_not_all_runs_fit_those_that_run_and_the_sums_are_kept(plain: None) -> None:
    many = [stands(number, "queued") for number in range(2, 42)]
    found = lines(View(Runs([*many, RUNNING])), height=12)
    assert len(found) == 12
    assert "running" in found[1]
    assert found[-2].startswith("runs: 1 running, 40 queued; ")
    assert found[-1] == "jobs: 3 of 14 done, 0 under way"


# When it is shown
