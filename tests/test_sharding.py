"""Sharded strategies: each equals the reference, and each rank really holds and sends its part.

The gates of a world size share one set of processes, so that torch is imported once for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.tensor import DTensor

from gate_runs import Gates, planned, shortened
from preloaded import spawned
from relay import strategies
from relay.base.errors import UserError
from relay.datasets import catalogue
from relay.equivalence import gate
from relay.planning import config
from relay.planning.planner import plan
from relay.process.ranks import Ranks
from relay.spec import tasks
from relay.spec.run import Run
from relay.strategies._tensor_plan import tensor_plan
from relay.strategies.base import Strategy
from relay.task.network import Computation, Network
from relay.task.task import Task

STEPS = 4
FP64 = {"precision": "fp64"}
GPT, MOE = {"task": "gpt-tiny"}, {"task": "gpt-moe-tiny"}


def cell(strategy: str, *given: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A gate to run: what `gate_runs.planned` takes; in float64 where nothing else is said."""
    merged = {"strategy": strategy, **FP64}
    for values in given:
        merged |= values
    return merged | ({"options": options} if options else {})


BF16, FP16 = {"precision": "bf16"}, {"precision": "fp16"}
RECOMPUTED, LAST = {"activation_checkpointing": True}, {"channels_last": True}
CELLS = {
    2: [
        cell("fsdp"),
        cell("fsdp", GPT),
        cell("fsdp", GPT, RECOMPUTED),
        cell("fsdp", LAST),
        cell("fsdp", reshard_after_forward=False),
        cell("fsdp", GPT, offload=True),
        cell("fsdp", GPT, BF16),
        cell("fsdp", GPT, BF16, mixed_precision=True),
        cell("fsdp", FP16, mixed_precision=True),
        cell("fsdp", FP16),
        cell("tensor_parallel"),
        cell("tensor_parallel", GPT),
        cell("tensor_parallel", MOE),
        cell("tensor_parallel", GPT, RECOMPUTED),
        cell("tensor_parallel", GPT, BF16),
        cell("tensor_parallel", FP16),
        cell("tensor_parallel", loss_parallel=True),
        cell("tensor_parallel", GPT, loss_parallel=True),
        cell("tensor_parallel", GPT, FP16, loss_parallel=True),
        cell("expert_parallel", MOE),
        cell("expert_parallel", MOE, RECOMPUTED),
        cell("expert_parallel", MOE, BF16),
        cell("expert_parallel", MOE, FP16),
    ],
    4: [
        cell("fsdp"),
        cell("fsdp", GPT),
        cell("fsdp", MOE),
        cell("fsdp", GPT, replicas=2),
        cell("fsdp", GPT, replicas=2, offload=True, reshard_after_forward=False),
        cell("tensor_parallel"),
        cell("tensor_parallel", GPT),
        cell("tensor_parallel", MOE),
        cell("tensor_parallel", loss_parallel=True),  # ten classes over four ranks
        cell("fsdp_tensor_parallel"),
        cell("fsdp_tensor_parallel", GPT),
        cell("fsdp_tensor_parallel", MOE),
        cell("fsdp_tensor_parallel", GPT, RECOMPUTED, BF16),
        cell("fsdp_tensor_parallel", GPT, FP16),
        cell("expert_parallel", MOE),
    ],
}


def named(chosen: dict[str, Any]) -> str:
    """The cell in one word."""
    told = {**chosen, **chosen.get("options", {})}
    return "-".join(
        str(v) if isinstance(v, str) else f"{k}={v}" for k, v in told.items() if k != "options" and v != "fp64"
    )


# The processes


def _judge(ranks: Ranks, asked: list[tuple[str, Run, Path, Path]], place: Path) -> None:
    for name, run, dataset, trained in asked:
        if ranks.rank == 0:
            print(name, flush=True)
        verdict = gate.judge(run, dataset, trained, ranks)
        if ranks.rank == 0:
            (place / f"{name}.json").write_text(json.dumps(verdict.as_dict()))


def judged(gates: Gates, world_size: int, place: Path) -> dict[str, dict[str, Any]]:
    """The verdicts of all cells of a world size, by their names."""
    asked = []
    for chosen in CELLS[world_size]:
        given = dict(chosen)
        judged_run, plain = planned(given.pop("strategy"), world_size, **given)
        trained = gates.reference(shortened(plain, STEPS))
        asked.append((named(chosen), shortened(judged_run, STEPS), gates.dataset(judged_run.dataset), trained))
    spawned(_judge, world_size, asked, place)
    return {name: json.loads((place / f"{name}.json").read_text()) for name, *_ in asked}


@pytest.fixture(scope="module")
def verdicts(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, dict[str, Any]]]:
    """Verdicts of a world size, judged when first asked for."""
    known: dict[int, dict[str, dict[str, Any]]] = {}

    def of(world_size: int) -> dict[str, dict[str, Any]]:
        if world_size not in known:
            known[world_size] = judged(gates, world_size, tmp_path_factory.mktemp(f"world-{world_size}"))
        return known[world_size]

    return of


# Equal to the reference


@pytest.mark.long
@pytest.mark.parametrize(
    ("world_size", "name"), [(size, named(chosen)) for size, cells in CELLS.items() for chosen in cells]
)
def test_it_trains_what_the_reference_trains(verdicts: Callable[..., Any], world_size: int, name: str) -> None:
    verdict = verdicts(world_size)[name]
    assert verdict["problems"] == []
    assert verdict["max_loss_difference"] <= 1e-9
    assert {"algorithm: parameters", "scaled: parameters", "evaluation"} <= {part["name"] for part in verdict["parts"]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("world_size", "name", "share"),
    [
        (2, "fsdp-gpt-tiny", 1 / 2),
        (4, "fsdp-gpt-tiny", 1 / 4),
        (4, "fsdp", 1 / 4),
        (4, "fsdp-gpt-tiny-replicas=2", 1 / 2),
        (2, "tensor_parallel-gpt-tiny", 1 / 2),
        (4, "tensor_parallel-gpt-tiny", 1 / 4),
        (4, "tensor_parallel-gpt-moe-tiny", 1 / 4),
        (4, "fsdp_tensor_parallel-gpt-tiny", 1 / 4),
    ],
)
def test_a_rank_holds_its_part(verdicts: Callable[..., Any], world_size: int, name: str, share: float) -> None:
    shares = verdicts(world_size)[name]["bytes_held_share"]
    assert set(shares) == {"parameters", "gradients", "optimizer"}
    for held in shares.values():
        assert len(held) == world_size
        assert share - 0.02 <= min(held) <= max(held) <= share + 0.10


@pytest.mark.long
def test_a_replica_sees_its_samples(verdicts: Callable[..., Any]) -> None:
    of = {name: verdict["samples_per_rank"] for name, verdict in verdicts(4).items()}
    assert of["fsdp-gpt-tiny"] == of["expert_parallel-gpt-moe-tiny"] == [8] * 4
    assert of["fsdp-gpt-tiny-replicas=2"] == [8] * 4  # hybrid sharding divides samples over all ranks as well
    assert of["tensor_parallel-gpt-tiny"] == [32] * 4
    assert of["fsdp_tensor_parallel-gpt-tiny"] == [16] * 4


# What is in the processes


def of_task(name: str, precision: str = "fp32") -> Task:
    """The task at the start of a training of ten steps."""
    spec = tasks.task(name)
    dataset = catalogue.dataset(spec.dataset)
    return Task(spec, dataset.classes, 5, precision, steps_per_epoch=10, total_steps=10, kind=dataset.kind)


def built(name: str, ranks: Ranks, task: Task, **options: Any) -> Strategy:
    """The strategy, for batches of eight samples."""
    return strategies.load(name)(task, ranks, 8, options)


def batch(task: Task, strategy: Strategy, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's slice of a made-up batch."""
    generator, shape = torch.Generator().manual_seed(seed), (8, *task.spec.input_shape)
    text = task.kind == "text"
    inputs = torch.randint(256, shape, generator=generator) if text else torch.randn(shape, generator=generator)
    targets = torch.randint(task.classes or 1, shape if text else (8,), generator=generator)
    replica = strategy.replica
    return inputs.chunk(replica.count)[replica.index], targets.chunk(replica.count)[replica.index]


def _memory(ranks: Ranks) -> None:
    for name, task_name in (("fsdp", "gpt-tiny"), ("tensor_parallel", "gpt-tiny"), ("expert_parallel", "gpt-moe-tiny")):
        task = of_task(task_name)
        strategy = built(name, ranks, task)
        strategy.train_step(*batch(task, strategy))
        whole = sum(p.nbytes for p in task.model().parameters())
        local = [p.to_local() if isinstance(p, DTensor) else p for p in strategy.model.parameters()]
        stored = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}
        assert sum(stored.values()) <= 0.6 * whole, name


@pytest.mark.slow
def test_a_shard_is_no_view_of_the_whole() -> None:
    """The bytes of a shard tell nothing where it keeps the memory of what it was cut from."""
    spawned(_memory, 2)


def _resharded(ranks: Ranks) -> None:
    for reshard in (True, False):
        task = of_task("lenet-digits")
        strategy = built("fsdp", ranks, task, reshard_after_forward=reshard)
        inputs, targets = batch(task, strategy)
        strategy.train_step(inputs, targets)
        before = strategy.footprint()
        assert strategy.predict(inputs).shape == (4, 10)
        assert strategy.footprint() == before
        strategy.train_step(inputs, targets)
        strategy.forward(inputs)  # in training the option decides
        gathered = not all(isinstance(p, DTensor) for p in strategy.model.parameters())
        assert gathered is not reshard


@pytest.mark.slow
def test_prediction_leaves_no_layer_gathered() -> None:
    spawned(_resharded, 2)


def _dropped(ranks: Ranks) -> None:
    from relay.strategies import tensor_parallel

    tensor_parallel.agree = lambda *_: None  # averaged gradients would hide that each rank has others
    for same in (True, False):
        task = of_task("utsa-mnist")
        strategy = built("tensor_parallel", ranks, task)
        torch.manual_seed(strategy.replica.index if same else ranks.rank)
        for step in range(3):
            strategy.train_step(*batch(task, strategy, seed=step))
        weights = ranks.gather(strategy.model.get_parameter("conv1.weight").detach())
        assert torch.equal(*weights) is same


@pytest.mark.slow
def test_ranks_of_a_replica_drop_alike_where_their_generators_agree() -> None:
    """What is whole on every rank gets the same gradients on all only with the same dropout."""
    spawned(_dropped, 2)


def _drifting(ranks: Ranks, name: str, whole: str, split: str) -> None:
    """A GPU's kernels may add up in another order on each rank: what comes of it must not stay on one."""
    task = of_task("gpt-tiny")
    strategy = built(name, ranks, task)
    backward = Strategy.backward

    def uneven(self: Strategy, loss: torch.Tensor) -> None:
        backward(self, loss)
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            gradient += 1e-3 * (ranks.rank % 2)

    Strategy.backward = uneven  # type: ignore[method-assign]
    strategy.train_step(*batch(task, strategy, seed=0))
    gradients = {n: p.grad for n, p in strategy.model.named_parameters() if n in (whole, split)}
    gradients = {n: g.to_local() if isinstance(g, DTensor) else g for n, g in gradients.items()}
    one, other, *_ = ranks.gather(gradients)
    assert torch.equal(one[whole], other[whole])
    assert one[whole].abs().max() > 0
    assert not torch.equal(one[split], other[split])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processes"), [("tensor_parallel", 2), ("fsdp_tensor_parallel", 4)])
def test_what_is_whole_on_every_tensor_rank_stays_the_same_on_all(name: str, processes: int) -> None:
    spawned(_drifting, processes, name, "norm.weight", "block0.up.weight")


def _overflow(ranks: Ranks) -> None:
    task = of_task("gpt-tiny", "fp16")
    strategy = built("tensor_parallel", ranks, task)
    assert strategy.scaler is not None
    inputs, targets = batch(task, strategy)
    strategy.train_step(inputs, targets)
    before, scale = strategy.whole_model(), strategy.scaler.get_scale()

    strategy.optimizer.zero_grad()
    strategy.backward(task.loss(strategy.forward(inputs), targets))
    sharded = strategy.model.get_parameter("block0.up.weight").grad
    assert isinstance(sharded, DTensor)
    if ranks.rank == 1:
        sharded.to_local()[0, 0] = torch.inf
    strategy.update()
    assert strategy.scaler.get_scale() == scale / 2
    after = strategy.whole_model()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())

    strategy.train_step(inputs, targets)
    after = strategy.whole_model()
    assert ranks.rank != 0 or not all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.slow
def test_an_overflow_in_one_shard_skips_the_step_on_all_ranks() -> None:
    spawned(_overflow, 2)


# Experts


def _exchanged(ranks: Ranks) -> None:
    from relay.networks.gpt import MoE
    from relay.strategies._tensor_plan import shard_experts
    from relay.strategies.expert_parallel import Exchange

    torch.manual_seed(1)
    whole = MoE(8, 4).double()
    for parameter in whole.parameters():
        nn.init.normal_(parameter)
    mine = MoE(8, 4).double()
    mine.load_state_dict(whole.state_dict())
    shard_experts(mine, torch.distributed.init_device_mesh("cpu", (ranks.world_size,)))
    assert mine.up.to_local().shape[0] == 4 // ranks.world_size
    arrived: list[torch.Tensor] = []
    run = mine.run_experts
    mine.run_experts = lambda tokens, counts: (arrived.append(tokens.detach()), run(tokens, counts))[1]
    exchange = Exchange(mine, dist.group.WORLD)

    # The first feature says where a token is from. Nobody asks the second expert anything, and rank 0 only the last.
    counts = torch.tensor([[0, 0, 0, 5], [2, 0, 1, 3]])[ranks.rank]
    tokens = torch.randn(int(counts.sum()), 8, dtype=torch.float64, generator=torch.Generator().manual_seed(ranks.rank))
    tokens[:, 0] = ranks.rank
    ours, theirs = tokens.clone().requires_grad_(), tokens.clone().requires_grad_()
    outputs, expected = exchange(ours, counts), whole.compute(theirs, counts)
    assert torch.allclose(outputs, expected, rtol=0, atol=1e-12)
    assert arrived[0][:, 0].tolist() == [[1, 1], [1, 0, 0, 0, 0, 0, 1, 1, 1]][ranks.rank]

    outputs.square().sum().backward()
    expected.square().sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-12)
    for parameter in (whole.up, whole.up_bias, whole.down, whole.down_bias):
        dist.all_reduce(parameter.grad)
    for name in ("up", "up_bias", "down", "down_bias"):  # also where no token came: zeros, which optimizers count
        gradient = getattr(mine, name).grad.full_tensor()
        assert torch.allclose(gradient, getattr(whole, name).grad, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_tokens_travel_to_their_experts_and_back() -> None:
    spawned(_exchanged, 2)


def _summed(ranks: Ranks, run: Run, dataset: Path, trained: Path) -> None:
    from relay.strategies.expert_parallel import ExpertParallel

    ExpertParallel.backward = Strategy.backward
    verdict = gate.judge(run, dataset, trained, ranks)
    if ranks.rank == 0:
        assert "scaled: parameters" in {part["name"] for part in verdict.parts if not part["passed"]}


@pytest.mark.slow
def test_experts_whose_gradients_are_sums_fail_the_gate(gates: Gates) -> None:
    run, plain = planned("expert_parallel", 2, **MOE, **FP64)
    trained = gates.reference(shortened(plain, 2))
    spawned(_summed, 2, shortened(run, 2), gates.dataset(run.dataset), trained)


# The plan of matrices


def network(name: str) -> Network:
    """The task's network."""
    return of_task(name).model()


def styles(name: str, ranks: int, **keys: Any) -> dict[str, str]:
    """The plan in short: "column" and "row" where outputs stay split, "…, whole" where they do not."""
    told = {}
    for module, style in tensor_plan(network(name), ranks, **keys).items():
        kind = {"ColwiseParallel": "column", "RowwiseParallel": "row"}.get(type(style).__name__, type(style).__name__)
        inputs, outputs = getattr(style, "input_layouts", ()), getattr(style, "output_layouts", ())
        alone = bool(inputs) and all(layout[0].is_replicate() for layout in (inputs, outputs))
        told[module] = kind + ", whole" * alone
    return told


def test_matrices_in_a_row_are_paired() -> None:
    assert styles("lenet-digits", 2) == {"fc1": "column", "fc2": "row", "fc3": "row, whole"}


def test_a_width_that_ranks_do_not_divide_is_put_together_again() -> None:
    """LeNet's 120 columns over seven ranks: as a pair, the next matrix would see shards of two widths."""
    assert styles("lenet-digits", 7) == {"fc1": "row, whole", "fc2": "column", "fc3": "row"}


def test_dropout_is_on_what_is_whole() -> None:
    assert styles("princeton-mnist", 2) == {"fc1": "row, whole", "fc2": "row, whole"}


def test_the_last_layers_classes_can_stay_split() -> None:
    plan = tensor_plan(network("lenet-digits"), 2, classes_sharded=True)
    assert list(plan) == ["fc3", "fc1", "fc2"]
    assert plan["fc3"].output_layouts[0].is_shard()
    assert not plan["fc3"].use_local_output


def test_layers_state_how_they_are_split() -> None:
    told = styles("gpt-tiny", 4)
    block = {"query": "column", "key": "column", "value": "column", "out": "row", "up": "column", "down": "row"}
    assert {name: told[f"block3.{name}"] for name in block} == block
    assert told["embed.token"] == told["embed.position"] == told["head"] == "column, whole"
    assert len(told) == 2 + 4 * len(block) + 1
    told = styles("gpt-moe-tiny", 4)
    assert told["block0.moe"] == "SplitExperts"
    assert "block0.up" not in told


# What is refused


@pytest.fixture
def alone() -> Iterator[Ranks]:
    """This process as the only rank."""
    yield Ranks.join("cpu", "gloo")
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [3, 8])
def test_heads_that_ranks_do_not_divide_are_named(ranks: int) -> None:
    with pytest.raises(UserError, match=rf"^tensor parallelism: {ranks} processes do not divide 4 attention heads"):
        tensor_plan(network("gpt-tiny"), ranks)


def test_a_last_layer_that_is_no_matrix_has_no_split_classes() -> None:
    layers = Network({"fc": nn.Linear(4, 4), "act": nn.ReLU()}, Computation())
    with pytest.raises(UserError, match=r"^loss_parallel: True is not allowed; the network's last layer, act, is no"):
        tensor_plan(layers, 2, classes_sharded=True)


def test_a_network_without_matrices_is_named(alone: Ranks) -> None:
    with pytest.raises(UserError, match=r"^tensor parallelism: only 0\.0% of the network's parameters"):
        built("tensor_parallel", alone, of_task("resnet18-cifar10"))


@pytest.mark.parametrize(
    ("comparison", "reason"),
    [
        (
            {"strategy": "tensor_parallel", "devices_per_node": 3},
            "4 attention heads of gpt-tiny are not",
        ),
        ({"strategy": "fsdp_tensor_parallel", "devices_per_node": 6, "options": {"tensor": 4}}, "tensor 4 does not"),
        ({"strategy": "fsdp_tensor_parallel", "devices_per_node": 2}, "needs at least 4 devices, has 2"),
        ({"strategy": "expert_parallel", "devices_per_node": 2}, "gpt-tiny has none"),
        (
            {"strategy": "fsdp", "devices_per_node": 2, "options": {"mixed_precision": True}},
            "mixed_precision is for precision bf16 or fp16, precision is fp32",
        ),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(comparison: dict[str, Any], reason: str) -> None:
    asked = {"device": "cpu", "task": "gpt-tiny", "comparisons": [comparison]}
    made = plan(config.load(asked), gpus=0)
    assert not made.runs
    assert [reason in skip for skip in map(str, made.skipped)] == [True]
