"""What is in the processes of a sharded strategy: memory, gathered layers, dropout, drift, overflows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from models import Scaled
from preloaded import spawned
from relay.process.ranks import Ranks
from relay.strategies import _sharded
from relay.strategies.base import Strategy
from relay.strategies.tensor_parallel import whole
from sharded import batch, built, of_task, prepared

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
            assert parameter.grad is not None
            gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            gradient += 1e-3 * (ranks.rank % 2)

    Strategy.backward = uneven  # type: ignore[method-assign]
    strategy.train_step(batch(task, strategy))
    gradients = {n: p.grad for n, p in strategy.model.named_parameters() if n in (whole, split)}
    gradients = {n: g.to_local() if isinstance(g, DTensor) else g for n, g in gradients.items()}
    one, other, *_ = ranks.gather(gradients)
    assert torch.equal(one[whole], other[whole])
    assert one[whole].abs().max() > 0
    assert not torch.equal(one[split], other[split])


def test_what_is_whole_on_every_tensor_rank_stays_the_same_on_all(tmp_path: Path) -> None:
    spawned(_drifting, 2, prepared("gpt-tiny", tmp_path))


def _overflow(ranks: Ranks, folder: Path) -> None:
    task = of_task("gpt-tiny", folder, "fp16")
    strategy = built("tensor_parallel", ranks, task)
    assert strategy.scaler is not None
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
