"""What the planner skips, refuses or warns of, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plans import CPU, DDP, planned, reasons, strategy_folder
from relay.base.errors import UserError

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")


# What is skipped, and why


@pytest.mark.parametrize(
    ("comparison", "reason"),
    [
        (CPU | {"threads": 4, "cpus_per_task": 2}, "threads 4 exceed cpus_per_task 2"),
        (DDP | {"devices_per_node": 3}, "global_batch_size 64 is not divisible by 3 processes"),
        (
            DDP | {"global_batch_size": 64, "batch_per_device": 16},
            "global_batch_size 64 contradicts batch_per_device 16; give one",
        ),
        (
            DDP | {"nodes": 2, "devices_per_node": 1},
            "2 nodes: needs a cluster profile, or an allocation; on one machine give devices_per_node",
        ),
        (CPU | {"nodes": 2}, "cpu is one process, which cannot span 2 nodes"),
        (CPU | {"global_batch_size": 1438}, "global_batch_size 1438 exceeds digits's 1437 training samples"),
    ],
)
def test_a_contradiction_is_named(comparison: dict[str, Any], reason: str) -> None:
    assert reasons(comparison) == [reason]


def test_lengths_that_leave_nothing_are_named() -> None:
    assert reasons(CPU, epochs=0.01) == ["epochs 0.01 are less than one step; an epoch has 22 steps"]
    (reason,) = reasons(CPU, epochs=1, warmup_steps=22)
    assert reason.endswith("leave none of the run's 22 steps to be timed; allowed: at most 21, or more epochs")
    (warning,) = planned(CPU | {"segment": {"steps": 10}}).warnings
    assert warning.endswith("(comparisons[0]) has jobs of 10 steps: warmup_steps 10 leave no step to be timed")


# What is refused


@pytest.mark.parametrize(
    ("comparison", "line"),
    [
        (
            {"strategy": "dpp"},
            "config: comparisons[1].strategy: 'dpp' is unknown; did you mean 'ddp'? docs/strategies.md has all",
        ),
        (
            {"strategy": "hooked", "options": {"bucketmb": 3}},
            "config: comparisons[1].options.bucketmb: 3 is not allowed, hooked has no such option; "
            "did you mean 'bucket_mb'? allowed: bucket_mb, hook, views",
        ),
    ],
)
def test_unknown_strategies_and_options_have_one_line(tmp_path: Path, comparison: dict[str, Any], line: str) -> None:
    folder = strategy_folder(tmp_path, "hooked", "options={'hook': 'none', 'bucket_mb': 25, 'views': False}")
    with pytest.raises(UserError) as caught:
        planned(CPU, comparison, strategy_folders=[folder])
    (found,) = str(caught.value).splitlines()
    assert found.startswith(line)
