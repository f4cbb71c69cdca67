"""The smooth twin of any model: functions with kinks give way to smooth ones, wherever they are called.

A rounding error can switch a unit of a ReLU on or off. The twin has no such units. Modules end in the same functions
as a model's own calls, and a traced graph calls torch's operations: all of them are seen here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from relay.task.modes import FunctionMode

# A bound that is farther away is never reached: it hides places, or keeps a logarithm finite.
FARTHEST_BOUND = 1e4
aten = torch.ops.aten


class Smooth(FunctionMode):
    """Calls a smooth function in the place of each with kinks."""

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the smooth function gives, if there is one; whole and complex numbers are left alone."""
        given = args[0] if args else kwargs.get("input")
        is_real = isinstance(given, torch.Tensor) and given.is_floating_point()
        if not is_real or func not in TWINS:
            return func(*args, **kwargs)
        named = dict(kwargs)
        return TWINS[func](*(args or [named.pop("input")]), **named)


def all_experts(model: nn.Module) -> None:
    """Let each mixture of experts, a module with `chosen` of `experts`, ask them all: rounding may choose others."""
    for module in model.modules():
        chosen, experts = (getattr(module, name, None) for name in ("chosen", "experts"))
        if isinstance(chosen, int) and isinstance(experts, int):
            module.chosen = experts  # type: ignore[assignment]


def _tanh(inputs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.tanh(inputs)


def _leaky(inputs: torch.Tensor, slope: float | torch.Tensor = 0.01, *_: Any, **named: Any) -> torch.Tensor:
    slope = named.get("negative_slope", slope)
    return slope * inputs + (1 - slope) * torch.tanh(inputs)


def _prelu(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    channels = [-1 if d == 1 else 1 for d in range(inputs.dim())]
    return _leaky(inputs, weight.view(channels) if inputs.dim() > 1 else weight)


def _abs(inputs: torch.Tensor, **_: Any) -> torch.Tensor:
    return inputs * torch.tanh(inputs)


def _clamp(inputs: torch.Tensor, min: Any = None, max: Any = None, **named: Any) -> torch.Tensor:
    """Within the bounds, and nearly what it was far from them."""
    low, high = (_bound(each) for each in (min, max))
    if not inputs.is_floating_point() or (low is None and high is None):
        return torch.clamp(inputs, min, max, **named)
    if low is not None and high is not None:
        half = (high - low) / 2
        return low + half + half * torch.tanh((inputs - low - half) / half) if half > 0 else inputs.clamp(low, high)
    bound, up = (low, 1) if low is not None else (high, -1)
    assert bound is not None
    return bound + up * F.softplus(up * (inputs - bound))


def _bound(bound: Any) -> float | None:
    """A number that values may come to; tensors are left alone."""
    return float(bound) if isinstance(bound, (int, float)) and abs(bound) < FARTHEST_BOUND else None


def _averages(dimensions: int) -> Callable[..., torch.Tensor]:
    """The mean in the place of the maximum, with the same windows; wide ones as single points of a mean."""
    pool: Any = getattr(F, f"avg_pool{dimensions}d")

    def average(inputs: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False, return_indices: bool = False) -> torch.Tensor:  # fmt: skip
        return pool(inputs, kernel_size, stride or None, padding, ceil_mode)

    return average


def _adaptive(dimensions: int) -> Callable[..., torch.Tensor]:
    pool: Any = getattr(F, f"adaptive_avg_pool{dimensions}d")
    return lambda inputs, size, return_indices=False: pool(inputs, size)


def _twins() -> dict[Any, Callable[..., torch.Tensor]]:
    tensor = torch.Tensor
    twins: dict[Any, Callable[..., torch.Tensor]] = {}
    for group, instead in (
        ((F.relu, F.relu_, torch.relu, torch.relu_, tensor.relu, tensor.relu_, aten.relu.default, aten.relu_.default,
          F.relu6, aten.relu6.default, F.hardtanh, F.hardtanh_, aten.hardtanh.default, aten.hardtanh_.default,
          F.threshold, F.softshrink, F.hardshrink), _tanh),
        ((F.leaky_relu, F.leaky_relu_, aten.leaky_relu.default, aten.leaky_relu_.default), _leaky),
        ((F.rrelu,), lambda inputs, lower=1 / 8, upper=1 / 3, *_, **__: _leaky(inputs, (lower + upper) / 2)),
        ((F.prelu, torch.prelu, tensor.prelu, aten.prelu.default), _prelu),
        ((F.hardsigmoid, aten.hardsigmoid.default), lambda inputs, *_, **__: torch.sigmoid(inputs)),
        ((F.hardswish, aten.hardswish.default), lambda inputs, *_, **__: F.silu(inputs)),
        ((F.l1_loss, aten.l1_loss.default), F.smooth_l1_loss),
        ((torch.abs, tensor.abs, tensor.__abs__, torch.absolute, tensor.absolute, aten.abs.default), _abs),
        ((torch.clamp, tensor.clamp, torch.clip, tensor.clip, aten.clamp.default), _clamp),
        ((torch.clamp_min, tensor.clamp_min, aten.clamp_min.default), _clamp),
        ((torch.clamp_max, tensor.clamp_max, aten.clamp_max.default), lambda x, max: _clamp(x, max=max)),
    ):  # fmt: skip
        twins |= dict.fromkeys(group, instead)
    for dimensions in (1, 2, 3):
        functions = (getattr(F, f"max_pool{dimensions}d"), getattr(torch, f"max_pool{dimensions}d"),
                     getattr(aten, f"max_pool{dimensions}d").default)  # fmt: skip
        twins |= dict.fromkeys(functions, _averages(dimensions))
        twins[getattr(F, f"adaptive_max_pool{dimensions}d")] = _adaptive(dimensions)
    return twins


TWINS = _twins()
