"""What is in the processes of a sharded strategy: scalars, drift, overflows; on pretended GPUs; its options' gates."""

from dataclasses import replace
from math import isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from any_models import Scaled
from gate_parts import judged, named
from gate_runs import Gates
from own_tasks import bound, data_of, spec
from preloaded import spawned
from relay.process.ranks import Ranks
from relay.strategies import _sharded
from relay.strategies._clipping import local
from relay.strategies._deepspeed_parts import WholeParameters
from relay.strategies.base import Strategy
from relay.strategies.tensor_parallel import whole
from relay.task import batches
from sharded import FP64, GPT, MOE, SAMPLES, batch, built, of_task, prepared

pytestmark = pytest.mark.slow


def _with_a_scalar(ranks: Ranks) -> None:
    for replicates in (True, False):
        _sharded.REPLICATES = replicates
        torch.manual_seed(0)
        model = Scaled()
        mesh = ranks.mesh(2) if replicates else ranks.mesh(2, 1, names=("data", "one"))
        _sharded.replicated(model, mesh)
        for _ in range(2):  # as micro-batches
            model(torch.full((1, 6), 1.0 + ranks.rank)).sum().backward()
        mine = model.scale.grad.clone()
        assert len({float(scale) for scale in ranks.gather(mine)}) == 1
        alone = Scaled()
        alone.load_state_dict({name: whole(tensor) for name, tensor in model.state_dict().items()})
        for rank in range(2):
            (2 * alone(torch.full((1, 6), 1.0 + rank)).sum() / 2).backward()
        assert torch.allclose(mine, alone.scale.grad)


@pytest.mark.skipif(not _sharded.REPLICATES, reason="NOT RUN: this torch has no `replicate`")
def test_replicas_average_a_parameter_without_dimensions() -> None:
    """FSDP refuses such parameters, which CLIP has, say."""
    spawned(_with_a_scalar, 2)


def _drifting(ranks: Ranks, folder: Path) -> None:
    """A GPU's kernels may add up in another order on each rank: what comes of it must not stay on one."""
    whole, split = "norm.weight", "block0.up.weight"
    task = of_task("gpt-tiny", folder)
    strategy = built("tensor_parallel", ranks, task)
    backward = Strategy.backward

    def uneven(self: Strategy, loss: torch.Tensor) -> None:
        backward(self, loss)
        for parameter in self.model.parameters():
            gradient = local(parameter.grad)
            gradient += 1e-3 * (ranks.rank % 2)

    Strategy.backward = uneven  # type: ignore[method-assign]
    strategy.train_step(batch(task, strategy))
    gradients = {n: local(p.grad) for n, p in strategy.model.named_parameters() if n in (whole, split)}
    one, other, *_ = ranks.gather(gradients)
    assert torch.equal(one[whole], other[whole])
    assert one[whole].abs().max() > 0
    assert not torch.equal(one[split], other[split])


def test_what_is_whole_on_every_tensor_rank_stays_the_same_on_all(tmp_path: Path) -> None:
    spawned(_drifting, 2, prepared("gpt-tiny", tmp_path))


def _overflow(ranks: Ranks, folder: Path) -> None:
    task = of_task("gpt-tiny", folder, "fp16")
    strategy = built("tensor_parallel", ranks, task)
    given = batch(task, strategy)
    strategy.train_step(given)
    before, scale = strategy.whole_model(), strategy.scaler.get_scale()

    strategy.optimizer.zero_grad()
    strategy.backward(task.loss(strategy.forward(given), given))
    sharded = strategy.model.get_parameter("block0.up.weight").grad
    assert isinstance(sharded, DTensor)
    if ranks.rank == 1:
        sharded.to_local()[0, 0] = torch.inf
    strategy.update()
    assert strategy.scaler.get_scale() == scale / 2
    after = strategy.whole_model()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())

    strategy.train_step(given)
    after = strategy.whole_model()
    assert ranks.rank != 0 or not all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_an_overflow_in_one_shard_skips_the_step_on_all_ranks(tmp_path: Path) -> None:
    spawned(_overflow, 2, prepared("gpt-tiny", tmp_path))


# What shards, cuts or replicates a model, on pretended GPUs: it computes, saves and loads there what it does on CPUs

SHORT = spec("gpt-tiny", depth=2, heads=2, global_batch_size=SAMPLES)
STRATEGIES = (
    ("fsdp", 2, {"offload": True}, "fp16"),
    ("fsdp_tensor_parallel", 4, {}, "fp64"),
    ("pipeline", 2, {"micro_batches": 2}, "fp16"),
)


def _as_plain(ranks: Ranks, name: str, options: dict[str, Any], precision: str, folder: Path) -> None:
    task = bound(SHORT, precision, folder / data_of(SHORT, folder).directory_name)
    strategy = built(name, ranks, task, **options)
    given = batches.moved(batch(task, strategy), ranks.device)
    losses = [strategy.train_step(given)]
    strategy.save(folder / name).result()
    ranks.wait_for_files()
    cut = [strategy.train_step(given), strategy.train_step(given)]
    strategy.load(folder / name)
    losses += [strategy.train_step(given), strategy.train_step(given)]
    assert all(map(torch.equal, cut, losses[1:])) or not strategy.replica.reports
    assert {tensor.device for tensor in batches.leaves(strategy.predict(given))} <= {ranks.device}
    told = [each for each in ranks.gather([loss.item() for loss in losses]) if not isnan(each[0])]
    plain = built("cpu", replace(ranks, devices=(torch.device("cpu"),)), task)
    both = (strategy, plain)
    expected = [plain.train_step(task.example(SAMPLES)).item() for _ in losses]
    near = {"rel": 1e-9, "abs": 1e-12} if precision == "fp64" else {"rel": 0.02, "abs": 0.02}
    assert [sum(step) / len(told) for step in zip(*told, strict=True)] == pytest.approx(expected, **near)
    mine, its = ({key: tensor.double().sum().item() for key, tensor in each.whole_model().items()} for each in both)
    assert mine == pytest.approx(its, **near) or ranks.rank > 0


@pytest.mark.parametrize(("name", "processes", "options", "precision"), STRATEGIES)
def test_what_shards_or_cuts_a_model_trains_it_on_gpus_as_one_process_on_a_cpu_does(
    name: str, processes: int, options: dict[str, Any], precision: str, tmp_path: Path
) -> None:
    data_of(SHORT, tmp_path)
    spawned(_as_plain, processes, name, options, precision, tmp_path, gpus=processes)


def test_a_mesh_over_gloo_does_not_bring_nccl() -> None:
    """Before torch 2.11, one of all ranks would on GPUs where gloo alone is known."""
    spawned(_of_all, 2, gpus=2)


def _of_all(ranks: Ranks) -> None:
    assert ranks.mesh(2).get_group() is dist.group.WORLD


# Sharded strategies equal the reference in the precisions and with the options of their own.


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
        cell("fsdp", LAST),
        cell("fsdp", GPT, offload=True),
        cell("fsdp", GPT, RECOMPUTED, BF16, mixed_precision=True),
        cell("fsdp", FP16, mixed_precision=True),
        cell("tensor_parallel", GPT, RECOMPUTED, BF16),
        cell("tensor_parallel", GPT, FP16, loss_parallel=True),
        cell("expert_parallel", MOE, RECOMPUTED, BF16),
        cell("expert_parallel", MOE, FP16),
    ],
    4: [
        cell("fsdp", GPT, replicas=2, offload=True, reshard_after_forward=False),
        cell("tensor_parallel", loss_parallel=True),  # ten classes over four ranks
        cell("fsdp_tensor_parallel", MOE),
        cell("fsdp_tensor_parallel", GPT, FP16),
    ],
}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world_size", CELLS)
def test_it_trains_what_the_reference_trains(gates: Gates, world_size: int, tmp_path: Path) -> None:
    """Only this puts sharding strategies with these options and precisions through a gate."""
    verdicts = judged(gates, CELLS[world_size], world_size, tmp_path)
    assert {name: verdict["problems"] for name, verdict in verdicts.items()} == {
        named(each): [] for each in CELLS[world_size]
    }


def test_a_loss_may_hold_a_parameter_that_was_given_up_and_not_read_it() -> None:
    """As stage 3 of ZeRO gives it up: an empty tensor. What is detached of it is as empty."""
    given_up, there = (nn.Parameter(torch.ones(size)) for size in (0, 2))
    given_up.ds_status, there.ds_status = (SimpleNamespace(name=name) for name in ("NOT_AVAILABLE", "AVAILABLE"))  # type: ignore[attr-defined]
    with WholeParameters():
        held = [each.detach() for each in (given_up, there)]
        assert held[1].sum() == 2
        for each in (given_up, held[0]):
            with pytest.raises(RuntimeError, match="the loss reads a parameter"):
                each.square()
