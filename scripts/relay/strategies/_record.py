"""What a model computes, as a graph of calls, and the functions that such graphs call beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd import Function
from torch.utils import _pytree as pytree

from relay.base.errors import UserError
from relay.task.calls import tensors_in

PLAIN = (int, float, complex, bool, str, type(None), type(...), torch.dtype, torch.device, torch.layout,
         torch.memory_format)  # fmt: skip
# What ties a tensor to the graph of gradients, which ends where a stage does.
OF_GRADIENTS = {torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward, torch.Tensor.register_hook}


class Untraceable(UserError):
    """The model cannot be recorded; the message names the module and says why."""


class Whole(BaseException):  # not an Exception, so that no model's own `except` catches it
    """A module's insides cannot be recorded, so that it has to be one call."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason


@dataclass(frozen=True)
class Like:
    """A tensor's shape, strides and type, and whether it has a gradient."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Like:
        """What is known of this tensor."""
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device | str) -> torch.Tensor:
        """Such a tensor without a gradient; on the meta device it has no data."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


@dataclass
class Record:
    """The calls of one pass. Nodes of the graph have these entries in `meta`:

    `like`: of the tensor, as `Like`; missing where there is none or more than one.
    `call`: the number of the call that it is, or that it takes a result from; missing for inputs and attributes.
    `path`: the name of the innermost module within which it was called.
    `uses`: the parameters and buffers of a leaf, by name; `changes`: those that the call changes in place.
    `storage`: of the tensor; `overwrites`: storages that the call changes in place. `draws`: it draws random numbers.
    """

    graph: fx.Graph
    inputs: list[fx.Node]  # one for each tensor among the model's arguments
    outputs: list[Any]  # nodes, or values that are no tensors
    structure: pytree.TreeSpec  # of the outputs
    constants: dict[str, Any]
    trainable: frozenset[str]  # names of parameters with gradients
    parameters: frozenset[str]
    device: torch.device


@dataclass(frozen=True)
class Applied:
    """A function with a gradient of its own, as a call of the graph."""

    function: type[Function]
    apply: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.apply(self.function, *args, **kwargs)


def under(grad: bool, autocast: torch.dtype | None, device: torch.device, function: Any, *args: Any, **kw: Any) -> Any:
    """Call a function in the context in which the model calls it."""
    with torch.set_grad_enabled(grad), torch.autocast(device.type, autocast, enabled=autocast is not None):
        return function(*args, **kw)


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Write into a tensor, and give it."""
    tensor[index] = value
    return tensor


def after(value: torch.Tensor, _: Any) -> torch.Tensor:
    """The value, once the other one has been computed, which has changed it in place."""
    return value


def held_by(module: nn.Module) -> list[torch.Tensor]:
    """A module's parameters and buffers."""
    return [*module.parameters(), *module.buffers()]


def versions(*values: Any) -> list[tuple[torch.Tensor, int]]:
    """The tensors in these values, each with torch's count of its changes in place."""
    return [(tensor, tensor._version) for tensor in tensors_in(values)]


def changed_since(before: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
    """Those of the tensors that have changed in place."""
    return [tensor for tensor, version in before if tensor._version != version]


def transformed(value: Any) -> bool:
    """Whether it is within a transform of torch.func, such as `vmap`: its tensors have no storage."""
    return any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors_in(value)))


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def named(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", type(function).__name__)
    return str(name).replace("TensorBase", "Tensor").replace("_VariableFunctionsClass", "torch")


def printable(function: Any) -> bool:
    """Whether the graph's code can name the function."""
    name = getattr(function, "__name__", "")
    owners = (torch, torch.nn.functional, torch.Tensor)
    return function in (getattr, set_item) or any(getattr(owner, name, None) is function for owner in owners)


def first_line(error: BaseException) -> str:
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return "what comes next depends on values that are computed from the batch or the parameters"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
