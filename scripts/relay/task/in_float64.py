"""A model in float64 throughout: where it asks for float32, or has constants in it, it computes in float64.

Models compute a loss, a norm or a softmax in float32, because less would not do: `logits.float()`. In float64 the same
words round. Two trainings then differ by 1e-7, whatever is right, and nothing can be compared within 1e-9. And what is
made without a type, such as `torch.zeros(2, 8)` or the weights of classes, is float32, with which torch refuses to
multiply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from relay.task.modes import FunctionMode

LOW, HIGH = (torch.float32, torch.float16, torch.bfloat16), torch.float64
# They read bytes that are there: another type would read other numbers.
OF_BYTES = frozenset({torch.Tensor.view, torch.frombuffer, torch.ops.aten.view.dtype})
# They make float32 where no type is given.
MAKERS = frozenset({
    torch.empty, torch.eye, torch.full, torch.linspace, torch.logspace, torch.normal, torch.ones, torch.rand,
    torch.randn, torch.tensor, torch.zeros, torch.arange, torch.range,
})  # fmt: skip


class InFloat64(FunctionMode):
    """Reads float32, and 16 bits, as float64 in the calls of torch's functions. `seen`: there was something so."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result in float64."""
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            self.seen = True
            return torch.Tensor.double(*args, **kwargs)
        if func in MAKERS and kwargs.get("dtype") is None:
            return self._in_high(func(*args, **kwargs))
        if func not in OF_BYTES and any(map(_is_low, (*args, *kwargs.values()))):
            self.seen = True
            args, kwargs = tuple(map(_high, args)), {name: _high(each) for name, each in kwargs.items()}
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            if not _of_both(args, kwargs):
                raise
            self.seen = True
        return func(*tree_map(_raised, args), **tree_map(_raised, dict(kwargs)))

    def _in_high(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor; a number is left as it is, for it takes the type of what it is joined with."""
        if tensor.dtype is not torch.float32 or not tensor.dim():
            return tensor
        self.seen = True
        return tensor.detach().to(HIGH).requires_grad_(tensor.requires_grad)


def _is_low(argument: Any) -> bool:
    return isinstance(argument, torch.dtype) and argument in LOW


def _high(argument: Any) -> Any:
    return HIGH if _is_low(argument) else argument


def _of_both(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether tensors of both types meet."""
    types = {each.dtype for each in tree_leaves((args, dict(kwargs))) if isinstance(each, torch.Tensor)}
    return HIGH in types and not types.isdisjoint(LOW)


def _raised(argument: Any) -> Any:
    return argument.to(HIGH) if isinstance(argument, torch.Tensor) and argument.dtype in LOW else argument
