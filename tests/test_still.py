"""Any model stilled: no dropout, whatever has it; BatchNorm of any kind frozen; and what is left is told."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay.task.draws import Draws
from relay.task.still import DRAWS_FIXED, DROPOUT_OFF, NORMS_FROZEN, FrozenNorms, still

N = 6


class Functional(nn.Module):
    """Dropout and BatchNorm as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(self.first(inputs), 0.3, self.training)
        return F.batch_norm(hidden, self.mean, self.variance, training=self.training)


MODELS = {
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (N, 5, 8), [DROPOUT_OFF]),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), (N, 2, 3, 3, 3), [NORMS_FROZEN]),
    "no statistics": (lambda: nn.BatchNorm2d(2, track_running_stats=False), (N, 2, 3, 3), [NORMS_FROZEN]),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_sample_is_computed_by_itself(name: str) -> None:
    build, shape, notes = MODELS[name]
    torch.manual_seed(1)
    model, inputs = build().double(), 3 + 2 * torch.randn(shape, dtype=torch.float64)
    names, parameters = list(model.state_dict()), [p.clone() for p in model.parameters()]
    done = still(model, lambda each: each(inputs))
    assert done.notes == notes
    assert not done.draws
    assert model.training
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    whole = model(inputs)
    assert torch.allclose(whole[:2], model(inputs[:2]), rtol=0, atol=1e-12)
    assert torch.allclose(whole, model.eval()(inputs), rtol=0, atol=1e-12)
    assert list(before) == names
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(torch.equal(one, other) for one, other in zip(parameters, model.parameters(), strict=True))


def test_what_functions_do_is_told_and_stilled_by_modes() -> None:
    torch.manual_seed(1)
    model, inputs = Functional().double(), torch.randn(N, 8, dtype=torch.float64)
    done = still(model, lambda each: each(inputs))
    assert (done.draws, done.functional_norms) == (True, True)
    assert done.notes == [NORMS_FROZEN, DRAWS_FIXED]
    kept = model.mean.clone()
    assert not torch.equal(kept, torch.zeros(8))
    with Draws().fixed(), FrozenNorms():
        whole, part = model(inputs), model(inputs[:2])
    assert torch.allclose(whole[:2], part, rtol=0, atol=1e-12)
    assert torch.equal(model.mean, kept)


def test_an_average_of_the_weights_is_frozen_although_it_is_them_at_first() -> None:
    class Averaged(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.register_buffer("average", self.weight.detach().clone())

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.average.lerp_(self.weight.detach(), 0.1)
            return super().forward(inputs)

    model = Averaged()
    known = {name: each.clone() for name, each in model.state_dict().items()}
    assert still(model, lambda each: each(torch.ones(2, 3))).buffers == ("average",)
    assert all(torch.equal(each, known[name]) for name, each in model.state_dict().items())
