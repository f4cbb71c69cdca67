"""Stages: where a network is cut, and that every way of splitting its layers trains it as one process does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from gate_runs import Gates, planned
from preloaded import spawned
from relay import strategies
from relay.base.errors import UserError
from relay.datasets import catalogue
from relay.process.ranks import Ranks
from relay.spec import requirements, tasks
from relay.spec.schedules import SCHEDULES
from relay.strategies import _cut
from relay.task.network import Computation, Network
from relay.task.task import Task

STEPS = 5
FILES = requirements.find()

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


# Training as one process does


def task(name: str, precision: str = "fp64", **settings: Any) -> Task:
    """A task of the catalogue, for a few steps; a GPT comes narrow."""
    spec = tasks.task(name)
    if name.startswith("gpt"):
        spec = replace(spec, network_options={**spec.network_options, "width": 16})
    dataset = catalogue.dataset(spec.dataset)
    return Task(spec, dataset.classes, 5, precision, 10, STEPS, kind=dataset.kind, **settings)


def batches(trained: Task, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Made-up global batches, always the same ones."""
    generator, shape = torch.Generator().manual_seed(3), trained.example(count).shape
    for _ in range(STEPS):
        if trained.kind == "text":
            tokens = torch.randint(trained.classes or 1, (2, *shape), generator=generator)
            yield tokens[0], tokens[1]
        else:
            inputs = torch.randn(shape, generator=generator, dtype=trained.dtype)
            yield inputs, torch.randint(trained.classes or 1, (count,), generator=generator)


Case = tuple[str, str, dict[str, Any], dict[str, Any]]  # strategy, task, options, the task's settings
BATCH = 16


def train_alone(trained: Task) -> dict[str, Any]:
    """The plain loop of one process."""
    model = trained.model()
    optimizer, losses = trained.optimizer(model.parameters()), []
    for inputs, targets in batches(trained, BATCH):
        optimizer.zero_grad()
        loss = trained.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        outputs = model(next(batches(trained, BATCH))[0])
    return {"losses": losses, "parameters": model.state_dict(), "outputs": outputs}


def train_split(case: Case, ranks: Ranks, folder: Path) -> dict[str, Any] | None:
    """The same under a strategy, on each rank; what rank 0 has gathered.

    On the way, the state after two steps is saved, and a second training goes on from it to the same end.
    """
    name, task_name, options, settings = case
    trained = task(task_name, **settings)
    strategy = strategies.load(name)(trained, ranks, BATCH, options)
    replica, losses = strategy.replica, []
    mine = [tuple(part.chunk(replica.count)[replica.index] for part in batch) for batch in batches(trained, BATCH)]
    losses += [loss.item() for loss in strategy.train_steps(iter(mine[:2]))]
    strategy.save(folder).result()
    losses += [loss.item() for loss in strategy.train_steps(iter(mine[2:]))]

    resumed = strategies.load(name)(trained, ranks, BATCH, options, strategy.measured)
    resumed.load(folder)
    for _ in resumed.train_steps(iter(mine[2:])):
        pass
    ended, again = strategy.model.state_dict(), resumed.model.state_dict()
    same = list(ended) == list(again) and all(torch.equal(local(ended[n]), local(again[n])) for n in ended)

    outputs = strategy.predict(mine[0][0])
    told = ranks.gather((replica, losses, outputs if replica.reports else None, same, strategy.footprint()))
    parameters = strategy.whole_model()
    if ranks.rank != 0:
        return None
    reporting = sorted((one for one in told if one[0].reports), key=lambda one: one[0].index)
    return {
        "replicas": [one[0].index for one in reporting],
        "losses": [sum(step) / len(step) for step in zip(*(one[1] for one in reporting), strict=True)],
        "outputs": torch.cat([one[2] for one in reporting]),
        "parameters": parameters,
        "resumed": all(one[3] for one in told),
        "silent": all(torch.tensor(one[1]).isnan().all() for one in told if not one[0].reports),
        "held": [one[4]["parameters"] for one in told],
    }


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of it."""
    return tensor.to_local() if isinstance(tensor, dist.tensor.DTensor) else tensor


def _train_all(ranks: Ranks, folder: Path, cases: list[Case]) -> None:
    for number, case in enumerate(cases):
        found = train_split(case, ranks, folder / str(number))
        if found is not None:
            torch.save(found, folder / f"{number}.pt")


def check(world_size: int, cases: list[Case], folder: Path) -> None:
    """Train each case over so many processes; all must be as one process trains it, and resumed bit for bit."""
    spawned(_train_all, world_size, folder, cases)
    alone: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(cases):
        _, task_name, options, settings = case
        trained = task(task_name, **settings)
        found = torch.load(folder / f"{number}.pt")
        expected = alone.setdefault(f"{task_name} {settings}", train_alone(trained))
        limit = 1e-12 if trained.dtype == torch.float64 else 2e-2  # bf16 rounds each micro-batch's sums by itself
        assert found["losses"] == pytest.approx(expected["losses"], rel=0, abs=limit), case
        assert set(found["parameters"]) == set(expected["parameters"]), case
        for parameter, tensor in expected["parameters"].items():
            assert torch.allclose(found["parameters"][parameter], tensor, rtol=0, atol=limit), (case, parameter)
        assert torch.allclose(found["outputs"].float(), expected["outputs"].float(), rtol=0, atol=limit), case
        assert found["replicas"] == list(range(world_size // options.get("stages", world_size))), case
        assert found["silent"], case
        assert found["resumed"], case
        whole = sum(tensor.nbytes for tensor in expected["parameters"].values())
        assert sum(found["held"]) == whole * len(found["replicas"]), case
        assert max(found["held"]) < whole, case


@pytest.mark.slow
def test_two_processes_split_a_network_as_one_has_it(tmp_path: Path) -> None:
    cases: list[Case] = [("pipeline", "lenet-digits", {"schedule": schedule}, {}) for schedule in SCHEDULES]
    parted = [
        ("pipeline", "gpt-tiny", {"schedule": schedule}, {"recompute": True})
        for schedule in SCHEDULES
        if SCHEDULES[schedule].parted
    ]
    others: list[Case] = [
        ("model_parallel", "lenet-digits", {}, {}),
        ("model_parallel", "gpt-tiny", {}, {"recompute": True}),
        ("pipeline", "gpt-moe-tiny", {"schedule": "interleaved_zero_bubble", "micro_batches": 2}, {}),
        ("pipeline", "lenet-digits", {"schedule": "1f1b"}, {"channels_last": True}),
        ("pipeline", "lenet-digits", {"schedule": "gpipe", "micro_batches": 1}, {}),
        ("pipeline", "gpt-tiny", {"schedule": "zbv_zero_bubble"}, {"precision": "bf16"}),
        ("model_parallel", "gpt-tiny", {}, {"precision": "bf16"}),
    ]
    check(2, [*cases, *parted, *others], tmp_path)


@pytest.mark.slow
def test_four_processes_split_a_deep_network_as_one_has_it(tmp_path: Path) -> None:
    deep = "gpt-deep-tiny"  # 11 layers with parameters for up to 8 stages
    cases: list[Case] = [("pipeline", deep, {"schedule": name, "micro_batches": 8}, {}) for name in SCHEDULES]
    cases += [("pipeline_ddp", deep, {"schedule": name, "stages": 2}, {}) for name in SCHEDULES]
    check(4, [*cases, ("model_parallel", deep, {}, {})], tmp_path)


@pytest.mark.long
def test_pipelines_of_four_stand_side_by_side(tmp_path: Path) -> None:
    names = ("1f1b", "interleaved_1f1b", "zbv_zero_bubble")
    check(8, [("pipeline_ddp", "gpt-deep-tiny", {"schedule": s, "stages": 4}, {}) for s in names], tmp_path)


# In the gate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "devices", "options"),
    [
        ("model_parallel", 2, {}),
        ("pipeline", 2, {"schedule": "1f1b"}),
        ("pipeline_ddp", 4, {"schedule": "gpipe"}),
        ("right_split_in_process", 2, {"micro_batches": 4}),
    ],
)
def test_the_gate_passes_what_splits_the_layers(
    gates: Gates, strategy: str, devices: int, options: dict[str, Any]
) -> None:
    verdict = gates.verdict(strategy, devices, steps=10, options=options)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    if devices == 4:
        assert verdict["samples_per_rank"] == [0.0, 32.0, 0.0, 32.0]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_gate_fails_stages_whose_static_graph_averages_too_early(gates: Gates, schedule: str) -> None:
    verdict = gates.verdict("wrong_pipeline_static_graph", 4, steps=10, options={"schedule": schedule})
    assert verdict["equivalent"] is False
    failed = {part["name"] for part in verdict["parts"] if not part["passed"]}
    assert {"algorithm: losses", "algorithm: parameters"} <= failed


def test_several_gpus_in_one_process_are_for_gpus() -> None:
    with pytest.raises(AssertionError, match="in_process needs a GPU, device is cpu; use model_parallel"):
        planned("model_parallel_in_process", 2)
