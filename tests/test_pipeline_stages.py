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
from relay.spec import tasks
from relay.spec.schedules import SCHEDULES
from relay.strategies import _cut
from relay.task.network import Computation, Network
from relay.task.task import Task
from short_tasks import task

pytestmark = pytest.mark.usefixtures("one_thread")


# Where a network is cut


def costliest(costs: dict[str, float], cuts: list[list[str]]) -> float:
    """What the costliest stage costs."""
    return max(sum(costs[name] for name in stage) for stage in cuts)


@pytest.mark.parametrize("seed", range(30))
def test_no_cut_is_better(seed: int) -> None:
    """Against all cuts there are, of layers some of which have no parameters."""
    draw = random.Random(seed)
    costs = {f"layer{place}": draw.choice([0.0, 0.1, 1.0, 5.0]) * draw.random() for place in range(9)}
    trainable = set(draw.sample(sorted(costs), 6))
    names = list(costs)
    for count in range(1, 7):
        cuts = _cut.cut(costs, count, trainable)
        assert [name for stage in cuts for name in stage] == names  # contiguous, each layer once
        assert len(cuts) == count
        assert all(trainable & set(stage) for stage in cuts)
        edges = ([0, *inner, 9] for inner in combinations(range(1, 9), count - 1))
        every = ([names[start:end] for start, end in pairwise(ends)] for ends in edges)
        allowed = [parts for parts in every if all(trainable & set(part) for part in parts)]
        assert costliest(costs, cuts) == pytest.approx(min(costliest(costs, parts) for parts in allowed))


def test_among_the_best_cuts_the_even_one_is_taken() -> None:
    costs = {"large": 10.0, "a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    assert _cut.cut(costs, 3, set(costs)) == [["large"], ["a", "b"], ["c", "d"]]


def test_many_layers_are_cut_at_once() -> None:
    costs = {f"layer{place}": 1.0 + place % 3 for place in range(100)}
    cuts = _cut.cut(costs, 16, set(costs))
    assert costliest(costs, cuts) <= sum(costs.values()) / 16 + 3.0


@pytest.mark.parametrize("count", [0, 6])
def test_more_stages_than_layers_with_parameters_are_refused(count: int) -> None:
    network = Task(tasks.task("lenet-digits"), 10, 5, "fp32", 10, 10).model()
    trainable = _cut.trainable(network)
    assert trainable == {"conv1", "conv2", "fc1", "fc2", "fc3"}
    with pytest.raises(UserError) as refused:
        _cut.cut(dict.fromkeys(dict(network.named_children()), 1.0), count, trainable)
    assert str(refused.value) == (
        f"stages: {count} is not allowed; allowed: 1 to 5, the network's layers with parameters"
    )


LENET = ["conv1", "act1", "pool1", "conv2", "act2", "pool2", "flatten", "fc1", "act3", "fc2", "act4", "fc3"]
TRAINED = {"conv1", "conv2", "fc1", "fc2", "fc3"}


def test_the_user_names_the_layers_with_which_stages_begin() -> None:
    stages = _cut.cut_before(["conv2", "fc1"], LENET, TRAINED)
    assert stages == [LENET[:3], LENET[3:7], LENET[7:]]


@pytest.mark.parametrize(
    ("firsts", "said"),
    [
        (
            ["fc4"],
            "cut_before: 'fc4' is not allowed; allowed: later layers of the network: act1, pool1, "
            "conv2, act2, pool2, flatten, fc1, act3, fc2, act4, fc3",
        ),
        (
            ["fc2", "fc1"],
            "cut_before: 'fc1' is not allowed after fc2; allowed: later layers of the network: act4, fc3",
        ),
        (
            ["fc3", "fc3"],
            "cut_before: 'fc3' is not allowed after fc3; allowed: later layers of the network: none",
        ),
        (
            ["conv1"],
            "cut_before: 'conv1' is not allowed after conv1; allowed: later layers of the network: act1, "
            "pool1, conv2, act2, pool2, flatten, fc1, act3, fc2, act4, fc3",
        ),
        (
            ["act1", "conv2"],
            "cut_before: the stage of act1, pool1 has no parameters; allowed: stages that have some, which are in "
            "conv1, conv2, fc1, fc2, fc3",
        ),
    ],
)
def test_a_cut_that_cannot_be_made_is_told_in_one_line(firsts: list[str], said: str) -> None:
    with pytest.raises(UserError) as refused:
        _cut.cut_before(firsts, LENET, TRAINED)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("strategy", "devices", "options", "said"),
    [
        ("model_parallel", 2, {"cut_before": "conv2, fc1"}, "cut_before names 2 layers, model_parallel has 2 stages"),
        ("pipeline", 4, {"cut_before": "fc1"}, "cut_before names 1 layer, pipeline has 4 stages"),
        ("pipeline_ddp", 4, {"cut_before": "fc1 fc2"}, "cut_before names 2 layers, pipeline_ddp has 2 stages"),
        (
            "model_parallel_in_process",
            2,
            {"cut_before": "fc1 fc2"},
            "cut_before names 2 layers, model_parallel_in_process has 2 stages",
        ),
    ],
)
def test_the_plan_says_how_many_layers_a_cut_names(
    strategy: str, devices: int, options: dict[str, Any], said: str
) -> None:
    comparison = {"strategy": strategy, "devices_per_node": devices, "options": options}
    (skipped,) = planned(comparison, gpus=4).skipped
    (reason,) = skipped.reasons
    assert reason.startswith(said)
    fits = planned(comparison | {"options": {"cut_before": ["", *["fc1"] * ("2 stages" in reason)]}}, gpus=4)
    assert not fits.skipped


def noisy(autocast: torch.dtype | None = None) -> Network:
    """A network with all that a look at it could disturb: running statistics, dropout, layers of very unequal cost."""
    layers = {
        "small": nn.Conv2d(3, 4, 3, padding=1),
        "norm": nn.BatchNorm2d(4),
        "drop": nn.Dropout(0.5),
        "flatten": nn.Flatten(),
        "large": nn.Linear(4 * 16 * 16, 2048),
        "last": nn.Linear(2048, 5),
    }
    return Network(layers, Computation(autocast=autocast))


def test_measuring_changes_neither_the_network_nor_the_random_generator() -> None:
    network = noisy()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    generator = torch.get_rng_state()
    inputs = torch.zeros(16, 3, 16, 16)
    seconds = _cut.layer_seconds(network, inputs)
    cuts = _cut.cut(seconds, 3, _cut.trainable(network))
    boundaries = _cut.flow(network, cuts, torch.empty(16, 3, 16, 16, device="meta"), torch.device("cpu"))
    assert list(seconds) == list(dict(network.named_children()))
    assert all(value > 0 for value in seconds.values())
    assert seconds["large"] == max(seconds.values())
    assert len(boundaries) == 4
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())
    assert network.training


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_what_passes_from_stage_to_stage_is_known_beforehand(autocast: torch.dtype | None) -> None:
    """Against what really passes, in training mode; autocast computes some layers in fewer bits than others."""
    network = noisy(autocast)
    cuts = [["small"], ["norm", "drop", "flatten"], ["large", "last"]]
    boundaries = _cut.flow(network, cuts, torch.empty(16, 3, 16, 16, device="meta"), torch.device("cpu"))
    passing = torch.randn(16, 3, 16, 16)
    for names, enters, leaves in zip(cuts, boundaries[:-1], boundaries[1:], strict=True):
        assert (passing.shape, passing.dtype) == (enters.shape, enters.dtype)
        passing = _cut.Stage.of(network, names)(passing)
        assert (passing.shape, passing.dtype) == (leaves.shape, leaves.dtype)
    assert [b.requires_grad for b in boundaries] == [False, True, True, True]
    assert (boundaries[1].dtype == torch.bfloat16) is (autocast is not None)
    assert all(b.is_meta for b in boundaries)


def test_what_leaves_a_stage_can_be_sent_and_detached_in_place() -> None:
    """A view could not be detached, and memory in another order would arrive as other values."""
    network = noisy().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = torch.randn(2, 3, 16, 16).requires_grad_()
    whole = network.part(["small", "norm"])(inputs)
    assert not whole.is_contiguous()
    outputs = _cut.Stage.of(network, ["small", "norm"])(inputs)
    assert outputs.is_contiguous()
    flat = _cut.Stage.of(network, ["flatten"])(outputs)
    assert flat.data_ptr() != outputs.data_ptr()
    flat.detach_()
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs)
    assert gradient.is_contiguous()


# What is declared


def test_torch_has_every_schedule_and_its_number_of_stages() -> None:
    for schedule in SCHEDULES.values():
        chosen = get_schedule_class(schedule.name)
        assert issubclass(chosen, PipelineScheduleSingle) == (schedule.stages == 1)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if SCHEDULES[name].rounds or SCHEDULES[name].filled])
@pytest.mark.parametrize("micro_batches", range(1, 11))
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
            {"schedule": "interleaved_zero_bubble"},
            {"channels_last": True},
            "schedule: 'interleaved_zero_bubble' computes gradients in parts, which channels_last does not allow",
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


def test_the_cut_of_a_run_is_measured_once(alone: Ranks) -> None:
    """A later job is told what the first one has measured, and cuts at the same places."""
    first = strategies.load("model_parallel")(task("lenet-digits"), alone, 16, {})
    names = list(first.measured["layer_seconds"])
    assert names == list(dict(first.task.model().named_children()))
    told = {"layer_seconds": dict.fromkeys(names, 1.0)}
    later = strategies.load("model_parallel")(task("lenet-digits"), alone, 16, {}, told)
    assert later.measured == told


def test_a_cut_that_is_named_needs_no_measurement(alone: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(FOLDER)])
    named = strategies.load("right_split_in_process")(task("lenet-digits"), alone, 16, {"cut_before": "fc1"})
    assert named.measured == {}
    assert [list(dict(part.named_children())) for part in named.parts] == [LENET[:7], LENET[7:]]
