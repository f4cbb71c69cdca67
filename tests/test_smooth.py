"""The smooth twin of any model: the same function in the place of a kink, whoever calls it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from relay.equivalence.smooth import Smooth, all_experts
from relay.task.in_float64 import InFloat64

KINKS: dict[str, tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]] = {
    "relu": (nn.ReLU(), F.relu),
    "relu of a tensor": (nn.ReLU(inplace=True), lambda x: x.relu()),
    "leaky relu": (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, negative_slope=0.2)),
    "prelu": (nn.PReLU(4), lambda x: F.prelu(x, torch.full((4,), 0.25, dtype=x.dtype))),
    "hardswish": (nn.Hardswish(), F.hardswish),
    "max pooling with padding": (nn.MaxPool2d(3, 2, 1), lambda x: F.max_pool2d(x, 3, stride=2, padding=1)),
    "adaptive max pooling": (nn.AdaptiveMaxPool2d(2), lambda x: F.adaptive_max_pool2d(x, 2)),
}
FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {  # and where the kink is
    "abs": (torch.abs, 0.0),
    "clamp from below": (lambda x: torch.clamp(x, min=0.5), 0.5),
    "l1 loss": (lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="none"), 0.0),
}


def slopes(function: Callable[[torch.Tensor], torch.Tensor], at: float) -> tuple[float, float]:
    """The slopes a little below and above a number."""
    x = torch.tensor([at - 1e-6, at + 1e-6], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(function(x).sum(), x)
    return float(found[0]), float(found[1])


@pytest.mark.parametrize("name", KINKS)
def test_modules_and_functions_have_the_same_twin(name: str) -> None:
    module, function = KINKS[name]
    inputs = torch.randn(2, 4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rough = module.double()(inputs.clone())
    with Smooth():
        by_module, by_function = module(inputs.clone()), function(inputs.clone())
    assert torch.equal(by_module, by_function)
    assert by_module.shape == rough.shape
    assert not torch.allclose(by_module, rough)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_no_kink_any_more(name: str) -> None:
    function, kink = FUNCTIONS[name]
    below, above = slopes(function, kink)
    assert abs(below - above) > 0.5
    with Smooth():
        below, above = slopes(function, kink)
    assert abs(below - above) < 1e-4


def test_bounds_hold_and_those_that_are_never_reached_are_left() -> None:
    inputs = torch.linspace(-9, 9, 101, dtype=torch.float64)
    with Smooth():
        assert torch.all(inputs.clamp(min=1e-6) > 0)
        assert torch.all(inputs.clamp(-1, 2).abs() <= 2)
        assert torch.equal(inputs.clamp(min=torch.finfo(torch.float64).min), inputs)
        assert torch.equal(torch.arange(5).clamp(1, 3), torch.tensor([1, 1, 2, 3, 3]))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_is_computed_again_in_a_backward_pass_has_the_same_twin(use_reentrant: bool) -> None:
    """Modes of torch's are left while `backward` is handed over. The kernels of several stay in their order."""
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    inputs = torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = []
    for again in (False, True):
        layers.zero_grad()
        with InFloat64(), Smooth():
            outputs = checkpoint(layers, inputs, use_reentrant=use_reentrant) if again else layers(inputs)
            outputs.sum().backward()
        found.append([parameter.grad.clone() for parameter in layers.parameters() if parameter.grad is not None])
    assert [len(each) for each in found] == [4, 4]
    assert all(torch.allclose(*pair, rtol=1e-12, atol=1e-12) for pair in zip(*found, strict=True))


def test_a_mixture_of_experts_asks_them_all() -> None:
    mixture = nn.Linear(2, 2)
    mixture.chosen, mixture.experts = 2, 4
    all_experts(nn.Sequential(mixture))
    assert mixture.chosen == 4
