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


def test_a_longer_limit_needs_fewer_jobs_and_wastes_less() -> None:
    chains = [chain(TIMES, 1000, minutes) for minutes in (5, 10, 30, 60)]
    # 190 s are 76 steps, 430 s are 172, 1,390 s are 556, 2,830 s are 1,132
    assert [(each.jobs, each.steps_in_a_job) for each in chains if isinstance(each, Chain)] == [
        (14, 76),
        (6, 172),
        (2, 556),
        (1, 1000),
    ]
    goodputs = [each.goodput for each in chains if isinstance(each, Chain)]
    assert goodputs == [pytest.approx(2000 / (2500 + 50 * jobs)) for jobs in (14, 6, 2, 1)]
    assert goodputs == sorted(goodputs)


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


def test_without_spare_time_the_limit_is_filled() -> None:
    found = chain(TIMES, 1000, 10, spare=0.0)
    assert (getattr(found, "steps_in_a_job", None), getattr(found, "jobs", None)) == (220, 5)  # 550 s
