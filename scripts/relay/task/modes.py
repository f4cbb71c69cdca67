"""Modes of torch that see every call of a function, or every operation: how they are written, entered and left.

`Work` is one of them, which counts operations.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry

BACKWARD = (torch.Tensor.backward, torch.autograd.backward)
_aten = torch.ops.aten
# torch counts those of GPUs alone. A CPU's have the same arguments.
_ATTENTION_OF_CPU = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_efficient_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _aten._scaled_dot_product_efficient_attention_backward,
}


class FunctionMode(TorchFunctionMode):
    """Derived modes say in `called` what a call of one of torch's functions gives. They hold in backward passes, too.

    Activation checkpointing computes modules again in the backward pass, which has to call what the forward pass has
    called. But torch leaves a mode while it hands over a call, and so for the whole of a `backward`.
    """

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a function with these arguments."""
        return func(*args, **kwargs)

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func not in BACKWARD:
            return self.called(func, args, given)
        run = torch.autograd._engine_run_backward  # what `backward` calls once all modes have handed it over

        def within(*engines: Any, **options: Any) -> Any:
            with self:
                return run(*engines, **options)

        with mock.patch.object(torch.autograd, "_engine_run_backward", within):
            return func(*args, **given)


class OperationMode(TorchDispatchMode):
    """Derived modes say in `called` what one of torch's operations gives, also in backward passes."""

    def called(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation. `types` are those of its tensors that are not plain ones."""
        return func(*args, **kwargs)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the tensors of this rank come by when it computes with them
        return self.called(func, types, args, kwargs or {})


class Operations(OperationMode):
    """Tells of every operation once it is computed: `tell` gets it with the kinds, arguments and result of a call."""

    def __init__(self, tell: Callable[[Any, Sequence[type], tuple[Any, ...], Mapping[str, Any], Any], None]) -> None:
        super().__init__()
        self.tell = tell

    def called(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation."""
        result = func(*args, **kwargs)
        self.tell(func, types, args, kwargs, result)
        return result


def arguments_by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation, without those that have their default value."""
    return dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | dict(kwargs)


def flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """An operation's floating-point operations: a matrix product's, a convolution's, an attention's; else 0."""
    packet: Any = getattr(func, "_overloadpacket", None)
    count: Callable[..., int] | None = flop_registry.get(_ATTENTION_OF_CPU.get(packet, packet))
    return count(*args, **kwargs, out_val=result) if count else 0


@contextmanager
def everywhere(mode: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter a mode of torch's here, and in every thread that is started within: modes hold for one thread alone."""
    run: Any = threading.Thread.run

    def entered(thread: threading.Thread) -> None:
        with mode():
            run(thread)

    threading.Thread.run = entered  # type: ignore[assignment,method-assign]
    try:
        with mode():
            yield
    finally:
        threading.Thread.run = run  # type: ignore[method-assign]


@contextmanager
def outside() -> Iterator[None]:
    """Compute within as if no mode were entered: data are read so, which may draw random numbers of their own."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


@contextmanager
def optimizers_outside() -> Iterator[None]:
    """Let optimisers' steps within compute as if no mode were entered: modes are for the model and its loss.

    A step that is handed a closure, which computes both, is left alone.
    """
    entered: list[ExitStack] = []  # a class and the one that it derives from may each have a step

    def begin(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entered.append(ExitStack())
        if not any(map(callable, (*args[1:], *kwargs.values()))):  # the first one is the optimiser itself
            entered[-1].enter_context(outside())

    def end(*_: Any) -> None:
        entered.pop().close()

    hooks = register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for each in reversed(entered):  # of steps that have failed
            each.close()


@dataclass
class Work:
    """Floating-point operations since the start: all, and those outside backward passes."""

    total: int = 0
    forward: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _add(self, func: Any, types: Sequence[type], args: Any, kwargs: Any, result: Any) -> None:
        """Count an operation of this thread, but for those on tensors without data, by which DTensor finds shapes."""
        operations = flops(func, args, kwargs, result)
        if not operations or any(issubclass(kind, FakeTensor) for kind in types):
            return
        with self.lock:
            self.total += operations
            self.forward += 0 if torch._C._current_graph_task_id() != -1 else operations

    def taken(self) -> tuple[int, int]:
        """All operations, and those outside backward passes, since the last call."""
        with self.lock:
            counted, self.total, self.forward = (self.total, self.forward), 0, 0
        return counted

    def counting(self) -> AbstractContextManager[None]:
        """Count what this thread computes within, and what threads compute that are started within."""
        return everywhere(lambda: Operations(self._add))
