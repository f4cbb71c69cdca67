"""Any model can be cut: what is recorded of it, where it may be cut, and that the parts compute what the model does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from any_models import Counted, Handed, Hidden, Shared, Stateful, UNet
from relay.strategies import _cut
from relay.strategies._recorder import Recorder

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def test_recording_changes_neither_the_model_nor_the_random_generator() -> None:
    torch.manual_seed(0)
    model, batch = UNet().double(), (torch.randn(2, 1, 8, 8, dtype=torch.float64),)
    before, generator = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    calls = _cut.Calls(Recorder(model, CPU).record(batch, {}, training=True))
    seconds = _cut.call_seconds(calls, model, CPU, None)
    assert [*seconds] == [node.name for node in calls.nodes]
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert not any(isinstance(each, torch._subclasses.FakeTensor) for each in model.state_dict().values())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: nn.Linear(3, 3), "all trained parameters are used in one piece: the model itself"),
        (
            lambda: nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Tanh(), nn.Linear(3, 3)),
            "all trained parameters are used in one piece: 2",
        ),
        (Shared, "layer share the parameter layer.bias, and all others lie between them"),
        (Counted, "the model: Tensor.item: what comes next depends on values"),
        (Stateful, "the model: uses a tensor that the batch before has left behind"),
        (Handed, "the model: passes the module a on to a function"),
        (Hidden, "the model: b uses tensors of the model that are not its arguments"),
    ],
)
def test_why_a_model_cannot_be_cut_is_one_line(model: Any, said: str) -> None:
    found = _cut.cuttable(model(), (torch.randn(2, 3),), {}, [])
    assert isinstance(found, str)
    assert found.startswith(said)
    assert "\n" not in found
