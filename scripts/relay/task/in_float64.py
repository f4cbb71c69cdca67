"""A model in float64 throughout: where it asks for float32 by name, it gets float64.

Models compute a loss, a norm or a softmax in float32, because less would not do: `logits.float()`. In float64 the same
words round. Two trainings then differ by 1e-7, whatever is right, and nothing can be compared within 1e-9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LOW, HIGH = torch.float32, torch.float64
# They read bytes that are there: another type would read other numbers.
OF_BYTES = frozenset({torch.Tensor.view, torch.frombuffer, torch.ops.aten.view.dtype})


class InFloat64(TorchFunctionMode):
    """Reads float32 as float64 in the calls of torch's functions. `seen`: something was asked for in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is torch.Tensor.float:
            self.seen = True
            return torch.Tensor.double(*args, **given)
        if func in OF_BYTES or not any(each is LOW for each in (*args, *given.values())):
            return func(*args, **given)
        self.seen = True
        return func(*map(_high, args), **{name: _high(each) for name, each in given.items()})


def _high(argument: Any) -> Any:
    return HIGH if argument is LOW else argument
