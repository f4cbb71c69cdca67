"""Stages: where a network is cut, what passes between them, and what the planner is told of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from gate_runs import FOLDER
from plans import planned
from relay import strategies
from relay.base.errors import UserError
from relay.process.ranks import Ranks
from relay.spec.schedules import SCHEDULES
from relay.strategies import _cut
from relay.strategies._recorder import Recorder
from short_tasks import task

pytestmark = pytest.mark.usefixtures("one_thread")


# Where a model is cut


def of_costs(seed: int) -> tuple[_cut.Calls, list[float]]:
    """A chain of layers, some without parameters, and what each costs."""
    draw = random.Random(seed)
    layers = [nn.Linear(2, 2) if place in draw.sample(range(9), 6) else nn.Tanh() for place in range(9)]
    calls = _cut.Calls(Recorder(nn.Sequential(*layers), torch.device("cpu")).record((torch.ones(1, 2),), {}, True))
    return calls, [draw.choice([0.0, 0.1, 1.0, 5.0]) * draw.random() for _ in calls.nodes]


@pytest.mark.parametrize("seed", range(3))
def test_no_cut_is_better(seed: int) -> None:
    """Against all cuts there are between the layers with parameters."""
    calls, costs = of_costs(seed)
    inner = calls.candidates()
    for count in range(1, len(inner) + 2):
        starts = _cut.balanced(calls, costs, count)
        assert len(starts) == count + 1
        every = ([0, *some, len(costs)] for some in combinations(inner, count - 1))
        best = min(max(sum(costs[a:b]) for a, b in pairwise(places)) for places in every)
        assert max(sum(costs[a:b]) for a, b in pairwise(starts)) == pytest.approx(best)
        assert all(any(a <= place < b for place in calls.trained) for a, b in pairwise(starts))


def test_more_stages_than_cuts_are_refused() -> None:
    calls, costs = of_costs(0)
    with pytest.raises(UserError) as refused:
        _cut.balanced(calls, costs, 99)
    most = len(calls.candidates()) + 1
    assert str(refused.value) == f"stages: 99 is not allowed; allowed: 1 to {most}, as often as the model can be cut"


@pytest.mark.parametrize(
    ("strategy", "devices", "options", "said"),
    [
        ("model_parallel", 2, {"cut_before": "conv2, fc1"}, "cut_before names 2 layers, model_parallel has 2 stages"),
        ("pipeline_ddp", 4, {"cut_before": "fc1 fc2"}, "cut_before names 2 layers, pipeline_ddp has 2 stages"),
    ],
)
def test_the_plan_says_how_many_layers_a_cut_names(
    strategy: str, devices: int, options: dict[str, Any], said: str
) -> None:
    comparison = {"strategy": strategy, "devices_per_node": devices, "options": options}
    (skipped,) = planned(comparison, gpus=4).skipped
    (reason,) = skipped.reasons
    assert reason.startswith(said)
    fits = planned(comparison | {"options": {"cut_before": ["", "fc1"]}}, gpus=4)
    assert not fits.skipped


# What is declared


def test_torch_has_every_schedule_and_its_number_of_stages() -> None:
    for schedule in SCHEDULES.values():
        chosen = get_schedule_class(schedule.name)
        assert issubclass(chosen, PipelineScheduleSingle) == (schedule.stages == 1)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if SCHEDULES[name].rounds or SCHEDULES[name].filled])
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 6])
def test_the_planner_knows_what_torch_refuses(alone: Ranks, name: str, micro_batches: int) -> None:
    """On three processes: nothing is skipped in vain, and no job learns that its micro-batches do not fit."""
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


@pytest.fixture
def alone() -> Iterator[Ranks]:
    """This process as the only rank."""
    yield Ranks.join("cpu", "gloo")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "settings", "said"),
    [
        (
            {"micro_batches": 5},
            {},
            "micro_batches: 5 is not allowed with 16 samples for each replica; allowed: a divisor of 16",
        ),
        (
            {"schedule": "zbv_zero_bubble"},
            {"compiled": True},
            "schedule: 'zbv_zero_bubble' computes gradients in parts, which compile does not allow",
        ),
        (
            {"schedule": "dualpipe_v", "micro_batches": 1},
            {},
            "schedule: 'dualpipe_v' needs at least 2 micro_batches for its 2 stages, has 1",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(
    alone: Ranks, options: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as refused:
        strategies.load("pipeline")(task("lenet-digits", **settings), alone, 16, options)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_the_cut_of_a_run_is_measured_once(alone: Ranks) -> None:
    """A later job is told what the first one has measured, and cuts at the same places."""
    first = strategies.load("model_parallel")(task("lenet-digits"), alone, 16, {})
    told = {"call_seconds": dict.fromkeys(first.measured["call_seconds"], 1.0)}
    later = strategies.load("model_parallel")(task("lenet-digits"), alone, 16, {}, told)
    assert later.measured == told


def test_a_cut_that_is_named_needs_no_measurement(alone: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(FOLDER)])
    named = strategies.load("right_split_in_process")(task("lenet-digits"), alone, 16, {"cut_before": "fc1"})
    assert named.measured == {}
    assert next(name for name, _ in named.stages[1].named_children()) == "fc1"
