"""A task's network: its named layers in a row, and how they are computed, so that no strategy has to know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Computation:
    """How layers are computed.

    `autocast`: the type of matrix products and convolutions (torch.bfloat16, torch.float16), None for that of the
    parameters. `recompute`: activations within a layer are not kept for the backward pass, but computed again
    (activation checkpointing). `compiled`: by torch.compile.
    """

    autocast: torch.dtype | None = None
    recompute: bool = False
    compiled: bool = False


class Network(nn.Sequential):
    """Named layers in a row. A part of it keeps their names, so that a pipeline's stages rename no parameter."""

    def __init__(self, layers: Mapping[str, nn.Module], computation: Computation) -> None:
        super().__init__(OrderedDict(layers))
        self.computation = computation
        # By name: the copies that nn.DataParallel makes of layers have no parameters of their own to be asked for.
        self.with_parameters = {name for name, layer in layers.items() if any(True for _ in layer.parameters())}
        if computation.compiled:
            self.compile()

    def part(self, names: Iterable[str]) -> Network:
        """The layers of these names, the same modules, computed in the same way."""
        layers = dict(self.named_children())
        return Network({name: layers[name] for name in names}, self.computation)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Through all layers. What autocast covers is the forward pass alone, as it should be."""
        with self._precision(inputs.device.type):
            for name, layer in self._modules.items():
                assert layer is not None
                recomputed = self.computation.recompute and name in self.with_parameters
                inputs = _recomputed(layer, inputs) if recomputed and torch.is_grad_enabled() else layer(inputs)
        return inputs

    def _precision(self, device: str) -> AbstractContextManager[object]:
        dtype = self.computation.autocast
        return nullcontext() if dtype is None else torch.autocast(device, dtype)


def _recomputed(layer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """The layer's outputs, whose inner activations are computed again in the backward pass.

    A layer without parameters is element-wise or a view: its input is all that it would keep, so it is left alone.
    """
    again = lambda: (nullcontext(), _StatisticsKept(layer))  # noqa: E731
    outputs: torch.Tensor = checkpoint(layer, inputs, use_reentrant=False, context_fn=again)
    return outputs


class _StatisticsKept:
    """While a layer is computed again: BatchNorm would move its running statistics a second time.

    Entered as often as that is: schedules that part the gradients of inputs from those of weights do it twice.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.norms = [m for m in layer.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        self.kept: list[dict[str, torch.Tensor]] = []

    def __enter__(self) -> None:
        self.kept = [dict(norm.named_buffers()) for norm in self.norms]
        for norm, buffers in zip(self.norms, self.kept, strict=True):
            norm._buffers.update({name: buffer.clone() for name, buffer in buffers.items()})

    def __exit__(self, *_: object) -> None:
        for norm, buffers in zip(self.norms, self.kept, strict=True):
            norm._buffers.update(buffers)
