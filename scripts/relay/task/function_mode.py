"""A mode of torch's functions that holds in backward passes, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

BACKWARD = (torch.Tensor.backward, torch.autograd.backward)


class FunctionMode(TorchFunctionMode):
    """Derived modes say in `replaced` what a call of one of torch's functions gives.

    Activation checkpointing computes modules again in the backward pass, which has to call what the forward pass has
    called. But torch leaves a mode while it hands over a call, and so for the whole of a `backward`.
    """

    def replaced(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a function with these arguments."""
        return func(*args, **kwargs)

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func not in BACKWARD:
            return self.replaced(func, args, given)
        run = torch.autograd._engine_run_backward  # what `backward` calls once all modes have handed it over

        def within(*engines: Any, **options: Any) -> Any:
            with self:
                return run(*engines, **options)

        with mock.patch.object(torch.autograd, "_engine_run_backward", within):
            return func(*args, **given)
