"""Stages: where a network is cut, what passes between them, and what the planner is told of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.requirements import SCHEDULES
from short_tasks import task

pytest_plugins = ["checkpointed"]


# What is declared


@pytest.mark.parametrize("name", [name for name in SCHEDULES if SCHEDULES[name].rounds or SCHEDULES[name].filled])
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 6])
def test_the_planner_knows_what_torch_refuses(ranks: Ranks, name: str, micro_batches: int) -> None:
    """On three processes: nothing is skipped in vain, and no job learns that its micro-batches do not fit."""
    from torch.distributed.pipelining.schedules import get_schedule_class  # which takes a second

    schedule, processes = SCHEDULES[name], 3
    stages = [Told(index, processes * schedule.stages, processes) for index in range(schedule.stages)]
    try:
        get_schedule_class(schedule.name)(stages if schedule.stages > 1 else stages[0], micro_batches)
    except ValueError:
        fits = False
    else:
        fits = True
    assert fits != bool([*schedule.problems(processes, micro_batches, False, False)])


@dataclass
class Told:
    """What a schedule asks of a stage before anything is computed."""

    stage_index: int
    num_stages: int
    group_size: int
    group: Any = None
    group_rank: int = 0
    is_first: bool = False
    is_last: bool = False
    has_backward: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    submod: nn.Module = field(default_factory=nn.Identity)
    stage_index_to_group_rank: dict[int, int] = field(default_factory=dict)


@pytest.mark.slow
def test_the_cut_of_a_run_is_measured_once(ranks: Ranks) -> None:
    """A later job is told what the first one has measured, and cuts at the same places."""
    first = strategies.load("model_parallel")(task("lenet-digits"), ranks, 16, {})
    told = {"call_seconds": dict.fromkeys(first.measured["call_seconds"], 1.0)}
    later = strategies.load("model_parallel")(task("lenet-digits"), ranks, 16, {}, told)
    assert later.measured == told
