"""The driver on this machine: ended by a signal, or killed, its trainings save and end, and the next call goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_driver import LocalDriver, until

DDP = {"comparisons": [{"strategy": "ddp", "devices_per_node": 2, "launcher": "torchrun"}]}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[LocalDriver]:
    made = LocalDriver(tmp_path, DDP)
    yield made
    made.end()


def _resumed(driver: LocalDriver, step: int) -> bool:
    return any(f'"start": {step},' in path.read_text() for path in driver.work.glob("records/*.jsonl"))


@pytest.mark.slow
def test_after_kill_9_the_training_saves_and_ends_and_the_next_call_goes_on(driver: LocalDriver) -> None:
    """And ends at SIGTERM once its training has saved."""
    process = driver.start(driver.trained)
    until(lambda: driver.trains() or process.poll() is not None, "the run trains")
    assert process.poll() is None, process.communicate()[0]
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
