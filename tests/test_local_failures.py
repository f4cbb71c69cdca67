"""A failed training is tried again as long as it comes further."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from relay.base import lock
from relay.chain.sealed import MANIFEST
from relay.driver.retries import Retries
from relay.driver.terminal import SEGMENT
from relay.run_folder.try_again import SAVING_ATTEMPTS


def attempts(count: int) -> list[SimpleNamespace]:
    """Of one job, which trains a segment of run-1 and has failed."""
    rule = SimpleNamespace(name=SEGMENT, restart_times=2)
    of_run = {"wildcards": SimpleNamespace(run="run-1"), "params": SimpleNamespace(first=0), "log": [], "message": ""}
    return [SimpleNamespace(jobid=1, attempt=attempt, rule=rule, **of_run) for attempt in range(1, count + 1)]


def test_a_run_that_has_come_far_is_given_up_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two attempts it comes no further than the attempt before them, which was far beyond the job's first step."""
    checkpoint = tmp_path / "results/checkpoints/run-1/step-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST).write_text("{}")
    monkeypatch.chdir(tmp_path)
    retries, jobs = Retries(), attempts(5)
    assert [retries.times(job) >= job.attempt for job in jobs[:2]] == [True, False]
    retries = Retries()
    for job in jobs:  # more than the retries of its rule: it comes further each time
        checkpoint = checkpoint.rename(checkpoint.with_name(f"step-{20 + job.attempt}"))
        assert retries.times(job) >= job.attempt


def test_a_run_whose_processes_still_save_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed job has left holds the run: each further attempt waits for it, and goes on from what it saves."""
    monkeypatch.chdir(tmp_path)
    retries, jobs = Retries(), attempts(SAVING_ATTEMPTS)
    with lock.exclusive(tmp_path / "results/checkpoints/run-1"):
        assert [retries.times(job) >= job.attempt for job in jobs] == [*[True] * (SAVING_ATTEMPTS - 1), False]
