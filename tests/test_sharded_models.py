"""Models of any form under the strategies that divide them: the plain model's gradients, on two and four processes."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from models import Decoder, Recurrent, Routed, Scaled, UNet, encoder
from preloaded import spawned
from relay.process.ranks import Ranks
from relay.task.bound import BoundTask
from sharded import SAMPLES, Given, batch, bound, built, gradients


def drawn(*shape: int) -> torch.Tensor:
    """Random numbers for eight samples, the same in every process."""
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def tokens(high: int) -> torch.Tensor:
    return torch.randint(high, (SAMPLES, 8), generator=torch.Generator().manual_seed(high))


class NoNorm(UNet):
    """A U-Net whose result does not depend on how a batch is sliced."""

    def __init__(self) -> None:
        super().__init__(8)
        self.norm = nn.GroupNorm(2, 16)  # type: ignore[assignment]


MODELS: dict[str, Callable[[], Given]] = {
    "unet": lambda: Given(NoNorm, (drawn(1, 8, 8),), drawn(1, 8, 8)),
    "encoder": lambda: Given(encoder, (drawn(4, 16),), drawn(4, 16)),
    "tied": lambda: Given(partial(Decoder, tied="read"), (tokens(32),), tokens(32)),
    "shared": lambda: Given(partial(Decoder, tied="shared"), (tokens(32),), tokens(32)),
    "lstm": lambda: Given(Recurrent, (drawn(5, 4), torch.tensor([5, 2, 3, 4, 5, 1, 2, 3])), drawn(3)),
    "scaled": lambda: Given(Scaled, (drawn(6),), drawn(4)),
    "routed": lambda: Given(Routed, (drawn(6),), drawn(3)),
}


def _equal(ranks: Ranks, model: str, strategy: str, changes: dict[str, Any], options: dict[str, Any]) -> None:
    _same(ranks, bound(MODELS[model](), model, **changes), strategy, options)


def _same(ranks: Ranks, task: BoundTask, strategy_name: str, options: dict[str, Any]) -> None:
    """A step's gradients and then a prediction are the plain model's."""
    torch.manual_seed(0)
    strategy = built(strategy_name, ranks, task, **options)
    strategy.train_step(batch(task, strategy))
    found = gradients(strategy.model)

    alone = copy(task)
    alone.recompute = False
    plain, given = alone.model(), task.example(SAMPLES)
    task.loss(task.outputs(plain, given), given).backward()
    expected = gradients(plain)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=0, atol=1e-12 * (1 + float(gradient.abs().max()))), name

    outputs = strategy.predict(batch(task, strategy))
    after = strategy.whole_model()
    if ranks.rank == 0:
        plain.load_state_dict(after)
        plain.eval()
        with torch.no_grad():
            known = task.outputs(plain, batch(task, strategy))
        for one, other in zip(tree_leaves(outputs), tree_leaves(known), strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["unet", "encoder", "tied"])
def test_fsdp_gives_the_plain_gradients(model: str) -> None:
    spawned(_equal, 2, model, "fsdp", {}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "processes", "options"),
    [
        ("shared", 4, {"replicas": 2}),
        ("lstm", 2, {"reshard_after_forward": False}),
        ("scaled", 2, {"offload": True}),
    ],
)
def test_so_does_each_kind_of_fsdp(model: str, processes: int, options: dict[str, Any]) -> None:
    spawned(_equal, processes, model, "fsdp", {}, options)


@pytest.mark.slow
def test_fsdp_gives_them_where_blocks_are_computed_again() -> None:
    spawned(_equal, 2, "unet", "fsdp", {"recompute": True}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy", "processes"),
    [
        ("encoder", "tensor_parallel", 4),
        ("shared", "fsdp_tensor_parallel", 4),
        ("scaled", "tensor_parallel", 2),
    ],
)
def test_tensor_parallelism_gives_the_plain_gradients(model: str, strategy: str, processes: int) -> None:
    spawned(_equal, processes, model, strategy, {}, {})


@pytest.mark.slow
def test_a_mixture_of_experts_of_ones_own_gives_the_plain_gradients() -> None:
    spawned(_equal, 2, "routed", "expert_parallel", {}, {})
