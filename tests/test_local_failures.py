"""A failed training is tried again as long as it comes further."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from relay.driver.retries import Retries
from relay.driver.terminal import SEGMENT, Terminal
from relay.run_folder.sealed import MANIFEST


def test_a_run_that_has_come_far_is_given_up_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two attempts it comes no further than the attempt before them, which was far beyond the job's first step."""
    checkpoint = tmp_path / "results/checkpoints/run-1/step-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST).write_text("{}")
    monkeypatch.chdir(tmp_path)
    retries, rule = Retries(Terminal()), SimpleNamespace(name=SEGMENT, restart_times=2)
    of_run = {"wildcards": SimpleNamespace(run="run-1"), "params": SimpleNamespace(first=0), "log": [], "message": ""}
    jobs = [SimpleNamespace(jobid=1, attempt=attempt, rule=rule, **of_run) for attempt in range(1, 6)]
    assert [retries.times(job) >= job.attempt for job in jobs[:2]] == [True, False]
    retries = Retries(Terminal())
    for job in jobs:  # more than the retries of its rule: it comes further each time
        checkpoint = checkpoint.rename(checkpoint.with_name(f"step-{20 + job.attempt}"))
        assert retries.times(job) >= job.attempt
