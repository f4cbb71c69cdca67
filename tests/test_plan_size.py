"""A plan is counted before it is expanded."""

from __future__ import annotations

import pytest

from relay.base.errors import UserError
from relay.planning import planner, settings
from relay.planning.config import load
from relay.planning.planner import plan

MANY = list(range(1, 1001))


def test_too_many_runs_are_refused_before_they_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    def expand(*_: object) -> None:
        raise AssertionError("expanded")

    monkeypatch.setattr(settings, "expand", expand)
    comparison = {"strategy": "cpu", "cpus_per_task": MANY, "threads": MANY, "loader": ["resident", "dataloader"]}
    config = load({"repeats": 3, "comparisons": [{"strategy": "cpu"}, comparison]})
    with pytest.raises(UserError) as caught:
        plan(config)
    assert str(caught.value) == (
        "config: comparisons: 6,000,003 runs are not allowed; allowed: at most 10,000 (most_jobs); the most are of "
        "comparisons[1], cpu: 1,000 cpus_per_task × 1,000 threads × 2 loader × 3 repeats = 6,000,000; "
        "give fewer values, or raise most_jobs"
    )


def test_too_many_segments_are_refused_before_they_are_listed() -> None:
    config = {"epochs": 1_000_000, "repeats": 2, "comparisons": [{"strategy": "cpu", "segment": {"steps": 1}}]}
    with pytest.raises(UserError) as caught:
        plan(load(config))
    message = str(caught.value)
    assert message.startswith("config: segment: 44,000,000 jobs are not allowed; allowed: at most 10,000 (most_jobs)")
    assert "2 runs have up to 22,000,000 segments each (cpu-" in message


def test_the_limit_can_be_raised_and_counts_a_value_that_is_given_twice_once() -> None:
    config = {"most_jobs": 4, "repeats": 2, "comparisons": [{"strategy": "cpu", "cpus_per_task": [1, 2, 2]}]}
    assert len(plan(load(config)).runs) == 4
    with pytest.raises(UserError, match="4 runs are not allowed; allowed: at most 3"):
        plan(load(config | {"most_jobs": 3}))
    assert len(plan(load(config | {"segment": {"epochs": 10}, "most_jobs": 8})).runs) == 4
    with pytest.raises(UserError, match="8 jobs are not allowed; allowed: at most 7"):
        plan(load(config | {"segment": {"epochs": 10}, "most_jobs": 7}))


@pytest.mark.parametrize("key", ["epochs", "evaluate_every_epochs"])
def test_an_absurd_length_is_refused(key: str) -> None:
    for value in (1e300, 1e7):
        with pytest.raises(UserError, match=f"config: {key}: 1e.* is not allowed|{key}: 1000"):
            planner.plan(load({key: value}))
