"""Activation checkpointing: what a block computes within is not kept, but computed again in the backward pass."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint


def apply(model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
    """Let each of the model's blocks compute its activations again. Names of parameters stay as they are."""
    for _, block in blocks:
        # Another class, not another `forward` of the object: copies of the model then compute with their own weights.
        block.__class__ = _recomputing(type(block))  # type: ignore[arg-type]  # mypy takes a class for unhashable


@cache
def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of blocks that compute as `kind` does, once more in the backward pass; `recomputed` is `kind`."""

    def forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        once = partial(kind.forward, self)
        if not torch.is_grad_enabled():
            return once(*arguments, **keywords)
        if torch.compiler.is_compiling():  # the compiler updates statistics once
            return checkpoint(once, *arguments, use_reentrant=False, **keywords)
        # The contexts of the first and of the second time.
        contexts = lambda: (nullcontext(), StatisticsKept(self))  # noqa: E731
        return checkpoint(once, *arguments, use_reentrant=False, context_fn=contexts, **keywords)

    described = {"forward": forward, "recomputed": kind, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), described)


class StatisticsKept:
    """A context for computing a module in which BatchNorm and InstanceNorm do not update their running statistics.

    It can be entered several times: schedules that separate the gradients of inputs and weights compute layers twice.
    """

    def __init__(self, module: nn.Module) -> None:
        self.norms = [m for m in module.modules() if isinstance(m, _NormBase) and m.track_running_stats]
        self.kept: list[dict[str, torch.Tensor]] = []

    def __enter__(self) -> None:
        self.kept = [dict(norm.named_buffers()) for norm in self.norms]
        for norm, buffers in zip(self.norms, self.kept, strict=True):
            norm._buffers.update({name: buffer.clone() for name, buffer in buffers.items()})

    def __exit__(self, *_: object) -> None:
        for norm, buffers in zip(self.norms, self.kept, strict=True):
            norm._buffers.update(buffers)
