"""Expert parallelism: tokens travel to their experts and back."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from models import Routed, UNet
from preloaded import spawned
from relay.base.errors import UserError
from relay.process.ranks import Ranks
from relay.strategies._experts import mixtures
from sharded import Given, bound, built


def _exchanged(ranks: Ranks) -> None:
    from relay.strategies._experts import shard_experts
    from relay.strategies.expert_parallel import Exchange
    from relay.tasks._gpt import MoE

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


def test_parameters_that_are_not_stacked_are_refused() -> None:
    model = Routed()
    assert [name for name, _ in mixtures(model)] == ["first", "second"]
    model.second.shared = nn.Parameter(torch.ones(6))
    with pytest.raises(UserError, match=r"^experts: 'second.shared' has the shape \[6\]; allowed: parameters of 4 exp"):
        list(mixtures(model))


def _without(ranks: Ranks) -> None:
    task = bound(Given(UNet, (torch.randn(8, 1, 8, 8),), torch.randn(8, 1, 8, 8)), "unet")
    with pytest.raises(UserError, match=r"^expert_parallel: UNet has no mixture of experts"):
        built("expert_parallel", ranks, task)


@pytest.mark.slow
def test_a_model_without_experts_is_refused() -> None:
    spawned(_without, 2)
