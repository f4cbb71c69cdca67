"""Jobs that are ready together reach Slurm in the order of their priorities: the planned order of the repeats."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_runs import Workplace, until
from mini_slurm import MiniSlurm

JOBS = 20  # as many as the driver has in the queue at once


@pytest.fixture
def place(cluster: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    place = Workplace(cluster, tmp_path)
    yield place
    place.end()


@pytest.mark.slow
def test_jobs_that_are_ready_are_submitted_in_the_order_of_their_priorities(place: Workplace) -> None:
    priorities = list(range(JOBS))
    random.Random(0).shuffle(priorities)
    driver = place.drive(*(f"held.{priority}.txt" for priority in priorities))
    until(lambda: len(place.submitted()) == JOBS, "all jobs are in the queue")
    driver.send_signal(signal.SIGINT)
    printed, _ = driver.communicate(timeout=60)
    assert driver.returncode == 1, printed
    # Oldest first: Slurm numbers them as they come.
    order = [int(re.findall(r"rule_held_wildcards_(\d+)", job["Comment"])[0]) for job in place.submitted()]
    assert order == sorted(priorities, reverse=True)
