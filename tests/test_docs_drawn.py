"""What pages show of a driver's view, the status and the plan is what the product draws of such runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import test_chain_forecasts
from pages import ROOT, block, holds, masked
from relay.base.clock import clock
from relay.driver.view import Job, View
from relay.planning.table import render
from relay.status import page
from relay.status.runs import Standing
from screen import screen
from test_live_view import Runs
from test_status import a_run

pytest_plugins = ["plans"]
CPU, DDP = "cpu (1 proc, 1 thread)", "ddp (2 procs, 1 thread)"


def stands(words: str, state: Any, step: int, steps: int, speed: float | None = None, **more: Any) -> Standing:
    return Standing(run=a_run(), words=words, state=state, step=step, steps=steps, samples_per_second=speed, **more)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the verdicts of two gates."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(ROOT)
    for gate in ("a", "b"):
        (tmp_path / page.GATES / gate).mkdir(parents=True)
        (tmp_path / page.GATES / gate / "verdict.json").write_text('{"equivalent": true}')
    return tmp_path


def test_the_live_view(results: Path) -> None:
    why = f"Priority, expected to start about {clock(time.time())}"
    standings = [
        stands(f"{CPU}, repeat 2", "running", 220, 440, 20533.0, jobs_done=0, jobs=1, seconds_left=200.0),
        stands(f"{DDP}, repeat 1", "queued", 440, 880, 13871.0, jobs_done=1, jobs=2, why=why),
        *(stands(f"{CPU}, repeat {number}", "to do", 0, 440, jobs_done=0, jobs=1) for number in (1, 3)),
    ]
    view = View(Runs(standings), {page.GATES: ["a", "b"]}, results)
    drawn = view.lines([Job("Training", 0.0, run=a_run().id)] * 2, (9, 21), 100, 30)
    above = 2  # lines of jobs that ended
    shown = masked(block("docs/driver.md", "12:04 Preparing").text)[above:]
    assert masked("\n".join(screen("\n".join(drawn)))) == shown


def test_the_status(results: Path) -> None:
    why = f"Priority, expected to start about {clock(time.time())}"
    standings = [
        stands(CPU, "running", 12, 100, 1066.0, jobs_done=0, jobs=1, seconds_left=580.0),
        stands(DDP, "queued", 40, 100, 2013.0, jobs_done=2, jobs=5, seconds_left=725.0, why=why),
    ]
    drawn = page.render(standings, {page.GATES: ["a", "b"]}, results, news="queue: 2 jobs of this folder", width=100)
    shown = block("docs/driver.md", "run", "state", "trained").text
    assert drawn.replace(clock(time.time()), "14:20").split() == shown.split()


def test_what_each_time_limit_would_mean(results: Path) -> None:
    found = test_chain_forecasts.made(results, time_limits=[60, 1, 5])
    test_chain_forecasts.leave(results, found.runs[0], [(45.0, 2.0, 5.0, 100)])
    assert holds(render(found).splitlines(), block("docs/chains.md", "chain of").lines)
