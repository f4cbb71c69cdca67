"""What a failed job comes to on this machine: tried again only where that can help, and told in one block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from living import words
from local_driver import LocalDriver, until
from relay.driver.retries import Retries
from relay.driver.terminal import SEGMENT, Terminal
from relay.run_folder.sealed import MANIFEST

STRATEGY = '''
"""Does something before each of its steps, and before it saves."""

import os
import signal
import time

from relay.strategies.base import Requirements, Strategy


class Made(Strategy):
    requirements = Requirements(processes="one")

    def build(self):
        self.build_whole()
        self.steps = 0

    def train_step(self, batch):
        self.steps += 1
        {before}
        return super().train_step(batch)

    def save(self, directory):
        {saving}
        return super().save(directory)
'''


@pytest.fixture
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalDriver]:
    """A driver for a strategy that does what the test's parameter says before each step, and before it saves."""
    before, saving, values = request.param
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "made.py").write_text(STRATEGY.format(before=before, saving=saving))
    config: dict[str, Any] = {
        "strategy_folders": [str(tmp_path / "strategies")],
        "epochs": 5,
        "checkpoint_minutes": 0.001,
    }
    made = LocalDriver(tmp_path, config | {"comparisons": [{"strategy": "made"}]} | values)
    yield made
    made.end()


def doing(before: str, *, saving: str = "pass", **values: Any) -> Any:
    return pytest.mark.parametrize("driver", [(before, saving, values)], indirect=True)


def attempts(driver: LocalDriver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((driver.work / "chain.json").read_text())["attempts"]
    return found


def blocks(printed: str) -> list[str]:
    """The blocks of failures: a line, and those indented below it."""
    return re.findall(r"(?m)^FAILED: .*\n(?:  .*\n)*", printed)


@pytest.mark.long
@doing("time.sleep(0.05); self.steps == 60 and os.kill(os.getpid(), signal.SIGKILL)", epochs=9)
def test_a_run_that_comes_further_each_time_goes_on_beyond_its_retries(driver: LocalDriver) -> None:
    """Only this has a run that needs more attempts than the profile's retries."""
    status, printed = driver.call(driver.trained)
    assert status == 0, printed
    assert len(attempts(driver)) > 3  # one, and the profile's two retries
    assert blocks(printed) == []
    assert "goes on with attempt 4" in printed
    assert "Error in rule" not in printed
    kept = [path.read_text() for path in driver.logs() if ".attempt-" in path.name]
    assert len(kept) == len(attempts(driver)) - 1
    assert all("its processes ended without a word" in text for text in kept)


def test_a_run_that_has_come_far_is_given_up_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two attempts it comes no further than the attempt before them, which was far beyond the job's first step."""
    checkpoint = tmp_path / "results/checkpoints/run-1/step-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST).write_text("{}")
    monkeypatch.chdir(tmp_path)
    retries, rule = Retries(Terminal()), SimpleNamespace(name=SEGMENT, restart_times=2)
    of_run = {"wildcards": SimpleNamespace(run="run-1"), "params": SimpleNamespace(first=0), "log": [], "message": ""}
    jobs = [SimpleNamespace(jobid=1, attempt=attempt, rule=rule, **of_run) for attempt in (1, 2)]
    assert [retries.times(job) >= job.attempt for job in jobs] == [True, False]


@pytest.mark.long
@doing("time.sleep(0.02)", saving="while not os.path.exists('go'): time.sleep(0.1)", checkpoint_minutes=60)
def test_a_run_whose_processes_still_save_is_not_given_up(driver: LocalDriver) -> None:
    """Only here do jobs die while their processes still save: twice. The run goes on from what is saved then."""
    process = driver.start(driver.trained)
    until(driver.trains, "the run trains")
    for attempt in ("2", "3"):
        (job,) = jobs(driver)
        job.kill()
        until(lambda last=attempt: last in attempt_of(driver) or process.poll() is not None, "the next attempt waits")
        assert process.poll() is None, process.communicate()[0]
    (driver.folder / "go").touch()
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    assert blocks(printed) == []
    first, second = (json.loads(path.read_text().splitlines()[0]) for path in sorted(driver.work.glob("records/*")))
    assert first["start"] == 0 < second["start"]


def jobs(driver: LocalDriver) -> list[psutil.Process]:
    """The jobs' own processes, which start those that train."""
    return [p for p in driver.processes() if any(word.endswith("scripts/train.py") for word in words(p))]


def attempt_of(driver: LocalDriver) -> list[str]:
    """Which attempts the jobs are."""
    return [its[its.index("--attempt") + 1] for process in jobs(driver) if (its := words(process))]
