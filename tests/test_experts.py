"""Expert parallelism: tokens travel to their experts and back."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing
from torch import nn

from models import Routed
from relay.base.errors import UserError
from relay.strategies._experts import mixtures


def test_parameters_that_are_not_stacked_are_refused() -> None:
    model = Routed()
    assert [name for name, _ in mixtures(model)] == ["first", "second"]
    model.second.shared = nn.Parameter(torch.ones(6))
    with pytest.raises(UserError, match=r"^experts: 'second.shared' has the shape \[6\]; allowed: parameters of 4 exp"):
        list(mixtures(model))
