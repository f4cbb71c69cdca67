"""Matrices that tensor parallelism can split: nn.Linear, and Hugging Face's Conv1D, whose weight is transposed."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel


def is_matrix(module: nn.Module) -> bool:
    """Whether a module computes as nn.Linear does, with a weight of its own: not one that is computed in each call."""
    kind = getattr(type(module), "recomputed", type(module))
    linear = isinstance(module, nn.Linear) and kind.forward is nn.Linear.forward
    return (linear or is_transposed(module)) and set(module._parameters) == {"weight", "bias"} and not module._modules


def is_transposed(module: nn.Module) -> bool:
    """Whether a module is transformers' Conv1D: inputs (..., inputs) times a weight (inputs, outputs), as in GPT-2."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils" for kind in type(module).__mro__
    )


def widths(module: Any) -> tuple[int, int]:
    """The numbers of inputs and of outputs of a matrix."""
    outputs, inputs = module.weight.shape
    return (outputs, inputs) if is_transposed(module) else (inputs, outputs)


class Column(ColwiseParallel):
    """torch's style for either kind of matrix, and for tables."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_transposed(module):
            return super()._apply(module, device_mesh)
        return _distributed(self, module, device_mesh, {"weight": Shard(1), "bias": Shard(0)})


class Row(RowwiseParallel):
    """torch's style for either kind of matrix."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_transposed(module):
            return super()._apply(module, device_mesh)
        self.desired_input_layouts = (Shard(-1),)
        return _distributed(self, module, device_mesh, {"weight": Shard(0), "bias": Replicate()})


def _distributed(style: Any, module: nn.Module, mesh: DeviceMesh, places: dict[str, Any]) -> nn.Module:
    def split(_: str, part: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(part.named_parameters()):
            shard = distribute_tensor(parameter.detach(), mesh, [places[name]])
            part.register_parameter(name, nn.Parameter(shard, parameter.requires_grad))

    taken = partial(style._prepare_input_fn, style.input_layouts, style.desired_input_layouts)
    given = partial(style._prepare_output_fn, style.output_layouts, style.use_local_output)
    return distribute_module(module, mesh, split, taken, given)
