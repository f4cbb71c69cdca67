"""A plain training in a strategy's process computes as if the strategy had never been loaded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay.equivalence.untouched import untouched
from relay.task.task import Task


def test_what_a_strategy_replaces_is_put_back_within_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: object, **__: object) -> None:
        raise AssertionError("the strategy's function is called")

    originals = [
        (F, "linear"),
        (nn.Linear, "forward"),
        (torch.optim.Optimizer, "add_param_group"),
        (Task, "loss"),
        (torch, "tanh"),
    ]
    expected = [getattr(owner, name) for owner, name in originals]
    for owner, name in originals:
        monkeypatch.setattr(owner, name, other)
    layer, inputs = nn.Linear(3, 2), torch.ones(4, 3)
    with untouched("fp32"):
        assert [getattr(owner, name) for owner, name in originals] == expected
        assert layer(inputs).shape == (4, 2)
    assert all(getattr(owner, name) is other for owner, name in originals)


def test_what_is_removed_or_added_stays_so_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(F, "linear")
    monkeypatch.setattr(F, "of_the_strategy", len, raising=False)
    with untouched("fp32"):
        assert nn.Linear(3, 2)(torch.ones(4, 3)).shape == (4, 2)
    assert not hasattr(F, "linear")
    assert F.of_the_strategy is len


def test_switches_are_turned_back_within_and_only_there() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        torch.set_autocast_enabled("cpu", True)
        with untouched("fp32"):
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.get_default_dtype() is torch.float32
            assert not torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_default_dtype() is torch.float64
        assert torch.is_autocast_enabled("cpu")
    finally:
        torch.set_float32_matmul_precision(before)
        torch.set_default_dtype(torch.float32)
        torch.set_autocast_enabled("cpu", False)
