"""The view that a terminal shows while jobs are under way."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay.driver.region import Region
from relay.driver.view import Job, View
from relay.status.runs import Standing, State
from screen import screen
from test_status import a_run

# A region at the bottom of a terminal


def test_lines_are_drawn_in_the_place_of_those_before() -> None:
    stream = io.StringIO()
    region = Region(stream)
    stream.write("before\n")
    region.draw(["one", "a long line", "three"])
    region.draw(["ONE", "short"])
    assert screen(stream.getvalue()) == ["before", "ONE", "short", ""]


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


@pytest.mark.parametrize(("width", "height"), [(40, 8), (20, 3)])
def test_no_line_is_too_wide_and_there_are_not_too_many(plain: None, width: int, height: int) -> None:
    many = [stands(number, "queued", why="Resources " * 9) for number in range(60)]
    found = lines(View(Runs([*many, RUNNING])), [Job("Gate: " + "x" * 300, 0.0)], width, height)
    assert len(found) <= height
    assert max(len(line) for line in found) <= width


# When it is shown
