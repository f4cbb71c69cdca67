"""How many jobs a training needs under a time limit, and what goodput to expect: against sums made by hand."""

from __future__ import annotations

import pytest

from relay.planning.chain_lengths import Chain, TooShort, chain, least_minutes
from relay.run_folder.job_times import JobTimes

# 2 s a step, and evaluations of half a second for each step; 40 s to start and 10 s to save each job.
TIMES = JobTimes(seconds_per_step=2.0, startup_seconds=40.0, between_seconds_per_step=0.5, saving_seconds=10.0, jobs=3)


def test_a_training_of_several_jobs() -> None:
    """10 minutes less a fifth are 480 s, less 50 s around the steps: 430 s, 172 steps of 2.5 s. 1,000 steps: 6 jobs."""
    found = chain(TIMES, 1000, 10)
    assert isinstance(found, Chain)
    assert (found.jobs, found.steps_in_a_job) == (6, 172)
    assert (found.startup_seconds, found.useful_seconds, found.between_seconds) == (240.0, 2000.0, 500.0)
    assert found.saving_seconds == 60.0
    assert found.allocated_seconds == 2800.0
    assert found.goodput == pytest.approx(2000 / 2800)


def test_work_that_fills_its_jobs_needs_no_further_one() -> None:
    assert getattr(chain(TIMES, 344, 10), "jobs", None) == 2  # 2 × 172
    assert getattr(chain(TIMES, 345, 10), "jobs", None) == 3


def test_a_limit_without_time_for_a_step_makes_no_progress() -> None:
    """40 + 10 + 2.5 s are four fifths of 65.625 s."""
    assert least_minutes(TIMES) == pytest.approx(65.625 / 60)
    assert chain(TIMES, 1000, 1) == TooShort(1, pytest.approx(65.625 / 60))
    just = chain(TIMES, 1000, 65.625 / 60)
    assert isinstance(just, Chain)
    assert (just.jobs, just.steps_in_a_job) == (1000, 1)
    assert just.goodput == pytest.approx(2 / 52.5)
