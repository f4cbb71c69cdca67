"""A model in float64 throughout: where it asks for float32, or has constants in it, it computes in float64.

Models compute a loss, a norm or a softmax in float32, because less would not do: `logits.float()`. In float64 the same
words round. Two trainings then differ by 1e-7, whatever is right, and nothing can be compared within 1e-9. And what is
made without a type, such as `torch.zeros(2, 8)` or the weights of classes, is float32, with which torch refuses to
multiply.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from relay.task.calls import tensors_in
from relay.task.modes import FunctionMode

# Of the types with fewer bits, the one of as many as float64 has; of complex numbers, each part has so many.
HIGH = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}
# They read bytes that are there: another type would read other numbers.
OF_BYTES = frozenset({torch.Tensor.view, torch.frombuffer, torch.ops.aten.view.dtype})
# Methods that are named after a type, and what stands in for them.
LOWERING = {
    getattr(torch.Tensor, low): getattr(torch.Tensor, high)
    for high, lows in {"double": ("float", "half", "bfloat16"), "cdouble": ("cfloat", "chalf")}.items()
    for low in lows
}
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
        if func in LOWERING:
            self.seen = True
            return LOWERING[func](*args, **kwargs)
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
        if tensor.dtype not in (torch.float32, torch.complex64) or not tensor.dim():
            return tensor
        self.seen = True
        return tensor.detach().to(HIGH[tensor.dtype]).requires_grad_(tensor.requires_grad)


def _is_low(argument: Any) -> bool:
    return isinstance(argument, torch.dtype) and argument in HIGH


def _high(argument: Any) -> Any:
    return HIGH[argument] if _is_low(argument) else argument


def _of_both(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether tensors of both types meet."""
    types = {each.dtype for each in tensors_in((args, dict(kwargs)))}
    return not types.isdisjoint(HIGH.values()) and not types.isdisjoint(HIGH)


def _raised(argument: Any) -> Any:
    is_low = isinstance(argument, torch.Tensor) and argument.dtype in HIGH
    return argument.to(HIGH[argument.dtype]) if is_low else argument
