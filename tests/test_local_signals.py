"""The driver on this machine: ended by a signal, or killed, its trainings save and end, and the next call goes on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from living import LONGEST_SECONDS, read_until, until, words
from local_driver import LocalDriver

IMPORTING_BYTES = 25_000_000  # of a Snakemake that imports: a bare Python has 10 MB, and one that has imported 60 MB
DDP = {"comparisons": [{"strategy": "ddp", "devices_per_node": 2, "launcher": "torchrun"}]}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[LocalDriver]:
    made = LocalDriver(tmp_path, DDP)
    yield made
    made.end()


def training(driver: LocalDriver) -> Any:
    """A driver whose run trains."""
    process = driver.start(driver.trained)
    until(lambda: driver.trains() or process.poll() is not None, "the run trains")
    assert process.poll() is None, process.communicate()[0]
    return process


def _resumed(driver: LocalDriver, step: int) -> bool:
    return any(f'"start": {step},' in path.read_text() for path in driver.work.glob("records/*.jsonl"))


@pytest.mark.slow
def test_after_kill_9_the_training_saves_and_ends_and_the_next_call_goes_on(driver: LocalDriver) -> None:
    """And ends at SIGTERM once its training has saved."""
    process = training(driver)
    process.kill()
    process.communicate()
    until(lambda: driver.processes() == [], "no process is left")
    assert "stopped at step" in driver.log(), driver.log()
    (saved, *_) = driver.steps()
    process = driver.start(driver.trained)
    until(lambda: process.poll() is not None or _resumed(driver, saved), "it goes on")
    assert process.poll() is None, process.communicate()[0]
    process.send_signal(signal.SIGTERM)
    printed = driver.ended(process)
    assert process.returncode == 1, printed
    assert "SIGTERM: the jobs save and end" in printed
    assert printed.endswith("Stopped. What is finished or saved is kept. Give the same command again to continue.\n")
    assert "LockException" not in printed
    assert "Traceback" not in printed
    assert "stopped at step" in driver.log(), driver.log()
    assert driver.processes() == []


@pytest.mark.long
def test_ctrl_c_twice_ends_at_once_and_the_training_saves_by_itself(driver: LocalDriver) -> None:
    """Only this sends two signals to a driver on this machine."""
    process = training(driver)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode in (1, 128 + signal.SIGINT), printed  # 1: the training was quicker
    assert "Traceback" not in printed
    until(lambda: driver.processes() == [], "the training has ended by itself")
    assert driver.steps(), driver.log()


@pytest.mark.slow
def test_ctrl_c_while_a_rule_starts_shows_no_traceback(driver: LocalDriver) -> None:
    """A terminal sends it to all processes; one of them is a Snakemake that imports its modules."""
    process = driver.start("results/plan.json")

    def starting() -> bool:
        children = psutil.Process(process.pid).children(True)
        rules = [each for each in children if "--target-jobs" in words(each)]  # no fork of its own
        return any(each.memory_info().rss > IMPORTING_BYTES for each in rules)

    until(lambda: starting() or process.poll() is not None, "the plan's rule starts")
    os.killpg(process.pid, signal.SIGINT)
    printed = driver.ended(process)
    assert "SIGINT: the jobs save and end" in printed
    assert "Traceback" not in printed


@pytest.mark.long
def test_the_next_call_waits_for_what_a_killed_driver_has_left(driver: LocalDriver) -> None:
    """Only this calls again while a killed driver's ranks live: one of them is stopped."""
    process = training(driver)
    rank = next(p for p in driver.processes() if {"relay.launch.worker", "-u"} <= set(words(p)))
    rank.suspend()
    process.kill()
    process.communicate()
    again = driver.start(driver.trained)
    assert "of a driver that was killed (pid " in read_until(again, "To end them at once", "Building DAG")
    assert again.poll() is None
    rank.resume()
    read_until(again, "All is over")
    (saved, *_) = driver.steps()
    until(lambda: _resumed(driver, saved), "it goes on")
