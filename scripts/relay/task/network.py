"""A task's network: named layers in sequence, together with how they are computed, which strategies need not know."""

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

    `autocast` is the type of matrix products and convolutions (torch.bfloat16 or torch.float16); None means the type of
    the parameters. With `recompute`, activations within a layer are not kept, but computed again in the backward pass
    (activation checkpointing). With `compiled`, torch.compile is used.
    """

    autocast: torch.dtype | None = None
    recompute: bool = False
    compiled: bool = False


class Network(nn.Sequential):
    """Named layers in sequence. A part keeps their names, so that parameters have the same names in pipeline stages."""

    def __init__(self, layers: Mapping[str, nn.Module], computation: Computation) -> None:
        super().__init__(OrderedDict(layers))
        self.computation = computation
        # Names are kept, because the copies that nn.DataParallel makes of layers list no parameters.
        self.with_parameters = {name for name, layer in layers.items() if any(True for _ in layer.parameters())}
        if computation.compiled:
            self.compile()

    def part(self, names: Iterable[str]) -> Network:
        """A network of the layers with these names: the same modules, computed in the same way."""
        layers = dict(self.named_children())
        return Network({name: layers[name] for name in names}, self.computation)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute all layers. Autocast covers the forward pass only, as torch recommends."""
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
    """The layer's outputs. Its inner activations are computed again in the backward pass.

    The caller leaves out layers without parameters: they keep only their input, so that nothing would be saved.
    """
    again = lambda: (nullcontext(), StatisticsKept(layer))  # noqa: E731
    outputs: torch.Tensor = checkpoint(layer, inputs, use_reentrant=False, context_fn=again)
    return outputs


class StatisticsKept:
    """A context for computing a module in which BatchNorm does not update its running statistics.

    It can be entered several times: schedules that separate the gradients of inputs and weights compute layers twice.
    """

    def __init__(self, module: nn.Module) -> None:
        self.norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        self.kept: list[dict[str, torch.Tensor]] = []

    def __enter__(self) -> None:
        self.kept = [dict(norm.named_buffers()) for norm in self.norms]
        for norm, buffers in zip(self.norms, self.kept, strict=True):
            norm._buffers.update({name: buffer.clone() for name, buffer in buffers.items()})

    def __exit__(self, *_: object) -> None:
        for norm, buffers in zip(self.norms, self.kept, strict=True):
            norm._buffers.update(buffers)
