"""Models of any form under the strategies that divide them: the plain model's gradients, on two and four processes."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from models import Decoder, Recurrent, Routed, Scaled, UNet, encoder
from preloaded import spawned
from relay.datasets import vision
from relay.process.ranks import Ranks
from relay.spec.tasks import TaskSpec
from relay.task.bound import BoundTask
from relay.task.load import task_class
from sharded import SAMPLES, Given, batch, bound, built, gradients

TASKS = Path(__file__).parent / "tasks"


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


def perceptron(classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, classes))


MODELS: dict[str, Callable[[], Given]] = {
    "unet": lambda: Given(NoNorm, (drawn(1, 8, 8),), drawn(1, 8, 8)),
    "encoder": lambda: Given(encoder, (drawn(4, 16),), drawn(4, 16)),
    "tied": lambda: Given(partial(Decoder, tied="read"), (tokens(32),), tokens(32)),
    "shared": lambda: Given(partial(Decoder, tied="shared"), (tokens(32),), tokens(32)),
    "lstm": lambda: Given(Recurrent, (drawn(5, 4), torch.tensor([5, 2, 3, 4, 5, 1, 2, 3])), drawn(3)),
    "scaled": lambda: Given(Scaled, (drawn(6),), drawn(4)),
    "routed": lambda: Given(Routed, (drawn(6),), drawn(3)),
    "classes": lambda: Given(partial(perceptron, 12), (drawn(6),), tokens(12)[:, 0]),
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
@pytest.mark.parametrize("model", ["unet", "encoder", "tied", "lstm"])
def test_fsdp_gives_the_plain_gradients(model: str) -> None:
    spawned(_equal, 2, model, "fsdp", {}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "processes", "options"),
    [
        ("unet", 4, {}),
        ("shared", 4, {"replicas": 2}),
        ("lstm", 2, {"reshard_after_forward": False}),
        ("scaled", 2, {"offload": True}),
    ],
)
def test_so_does_each_kind_of_fsdp(model: str, processes: int, options: dict[str, Any]) -> None:
    spawned(_equal, processes, model, "fsdp", {}, options)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["unet", "shared"])
def test_fsdp_gives_them_where_blocks_are_computed_again(model: str) -> None:
    spawned(_equal, 2, model, "fsdp", {"recompute": True}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy", "processes"),
    [
        ("encoder", "tensor_parallel", 4),
        ("tied", "tensor_parallel", 2),
        ("shared", "fsdp_tensor_parallel", 4),
        ("scaled", "tensor_parallel", 2),
    ],
)
def test_tensor_parallelism_gives_the_plain_gradients(model: str, strategy: str, processes: int) -> None:
    spawned(_equal, processes, model, strategy, {}, {})


@pytest.mark.slow
def test_a_mixture_of_experts_of_ones_own_gives_the_plain_gradients() -> None:
    spawned(_equal, 2, "routed", "expert_parallel", {}, {})


def _planned(ranks: Ranks) -> None:
    own = MODELS["routed"]()
    own.tensor_plan = lambda model: {"first": "experts", "second": "experts"}  # type: ignore[method-assign]
    _same(ranks, bound(own, "routed"), "tensor_parallel", {})


@pytest.mark.slow
def test_a_users_plan_may_split_them_by_tensor_parallelism() -> None:
    spawned(_planned, 2)


def _gpt2(ranks: Ranks) -> None:
    own = task_class(TaskSpec(name="gpt2", file=str(TASKS / "gpt2.py"), global_batch_size=8, learning_rate=1e-3))()
    own.dropout = 0.0  # type: ignore[attr-defined]
    _same(ranks, bound(own, "gpt2"), "fsdp_tensor_parallel", {})


@pytest.mark.slow
def test_gpt2_of_transformers_gives_the_plain_gradients() -> None:
    vision.importable()
    pytest.importorskip("transformers", reason="NOT RUN: transformers is not installed")
    spawned(_gpt2, 4)


@pytest.mark.slow
def test_tensor_parallelism_gives_them_with_sharded_classes_and_blocks_computed_again() -> None:
    spawned(_equal, 2, "classes", "tensor_parallel", {"recompute": True}, {"loss_parallel": True})
