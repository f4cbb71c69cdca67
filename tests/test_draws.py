"""Random draws in proofs: alike for every sample, whatever draws them, and however a batch is divided."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay.task.draws import Draws

WIDTH = 8


class Noisy(nn.Module):
    """A function, perhaps of a layer, with a parameter before it, so that gradients reach below."""

    def __init__(self, function: Callable[..., torch.Tensor], *layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.function = nn.Linear(WIDTH, WIDTH), nn.ModuleList(layer), function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self.first(inputs), *self.layer)


def attends(*, weights: bool) -> Noisy:
    layer = nn.MultiheadAttention(WIDTH, 2, dropout=0.4, batch_first=True)
    return Noisy(lambda x, attention: attention(x, x, x, need_weights=weights)[0], layer)


def hidden(inputs: torch.Tensor) -> torch.Tensor:
    """As a masked autoencoder hides: half of the places of each sample, drawn anew for each."""
    order = torch.rand(inputs.shape[:2]).argsort(1)
    return torch.gather(inputs, 1, order[:, :3, None].expand(-1, -1, WIDTH))


DRAWING: dict[str, Callable[[], nn.Module]] = {
    "alpha dropout": lambda: Noisy(lambda x: F.alpha_dropout(x, 0.3, training=True)),
    "attention with weights": lambda: attends(weights=True),
    "attention without weights": lambda: attends(weights=False),
    "a recurrent layer": lambda: Noisy(
        lambda x, its: its(x)[0], nn.LSTM(WIDTH, WIDTH, 2, dropout=0.5, batch_first=True)
    ),
    "a VAE's noise": lambda: Noisy(lambda x: x + x.exp() * torch.randn_like(x)),
    "a distribution": lambda: Noisy(lambda x: torch.distributions.Normal(x, x.exp()).rsample()),
    "hidden patches": lambda: Noisy(hidden),
    "dropped paths": lambda: Noisy(lambda x: x * torch.empty(len(x), 1, 1).bernoulli_(0.7) / 0.7),
}


@pytest.mark.parametrize("name", DRAWING)
def test_draws_are_the_same_in_every_division_of_a_batch(name: str) -> None:
    torch.manual_seed(1)
    model, inputs = DRAWING[name]().double(), torch.randn(6, 5, WIDTH, dtype=torch.float64)
    gradients = []
    draws = Draws()
    assert not torch.equal(model(inputs), model(inputs))  # it draws
    with draws.fixed():
        for sizes in ([6], [1, 3, 2]):
            model.zero_grad()
            for part in inputs.split(sizes):
                model(part).square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for whole, divided in zip(*gradients, strict=True):
        assert torch.allclose(whole, divided, rtol=0, atol=1e-12 * max(1.0, float(whole.abs().max())))
    assert draws.drawn
    assert not draws.unknown


def test_generators_advance_as_in_a_training_and_real_draws_are_told_apart() -> None:
    inputs, draws = torch.randn(4, 64), Draws(told_apart=True)
    torch.manual_seed(3)
    F.dropout(inputs, 0.5)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    with draws.fixed():
        F.dropout(inputs, 0.5)
        assert torch.equal(after, torch.get_rng_state())
        F.dropout(inputs, 0.5)
        torch.manual_seed(3)
        F.dropout(inputs, 0.5)
    first, second, again = (each.digest for each in draws.taken())
    assert first == again != second
    assert None not in (first, second)
    assert draws.taken() == []


def test_what_has_no_fixed_numbers_is_named() -> None:
    draws = Draws()
    with draws.fixed():
        torch.poisson(torch.ones(3, 4))
    assert draws.unknown == {"poisson"}
