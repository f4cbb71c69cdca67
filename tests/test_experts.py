"""Expert parallelism: tokens travel to their experts and back."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing
from torch import nn

from models import Routed, UNet
from preloaded import spawned
from relay.base.errors import UserError
from relay.process.ranks import Ranks
from relay.strategies._experts import mixtures
from sharded import Given, bound, built


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
