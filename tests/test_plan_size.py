"""A plan is counted before it is expanded."""

from __future__ import annotations

import pytest

from relay.base.errors import UserError
from relay.planning import settings
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
