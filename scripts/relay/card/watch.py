"""What a model calls while it computes: draws of random numbers, dropout, BatchNorm by functions, and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

NORMS = ("batch_norm",)


class Watch:
    """Watches modules of one model. The results are in order, each once, as `module`, or `module: function`."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.dropout: dict[str, None] = {}
        self.draws: dict[str, None] = {}
        self.norms: dict[str, None] = {}
        self.flops: int | None = 0  # None: something is computed that torch does not count
        self.uncounted = self.differentiates = False
        self.running: list[tuple[str, nn.Module]] = []
        self.functions: list[tuple[str, Mapping[str, Any]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what is computed within."""
        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                stack.callback(module.register_forward_pre_hook(self._begin(name)).remove)
                stack.callback(module.register_forward_hook(self._end, always_call=True).remove)
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused kernels draw where nobody sees it
            stack.enter_context(_Functions(self))
            stack.enter_context(_Operations(self))
            yield
        if self.uncounted:
            self.flops = None

    def _begin(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any) -> None:
            self.running.append((name, module))

        return hook

    def _end(self, *_: Any) -> None:
        self.running.pop()

    @property
    def here(self) -> str:
        """The innermost module that is under way, and the function that it calls."""
        name, module = self.running[-1] if self.running else ("", None)
        functions = [each for each, _ in self.functions]
        own = module is not None and type(module).__module__.startswith("torch.nn.")
        parts = [name, *(functions[:1] if not own else [])]
        return ": ".join(part for part in parts if part) or "model"

    def drawn(self, operation: str) -> None:
        """An operation has drawn random numbers."""
        module = self.running[-1][1] if self.running else None
        held = [n for n, v in vars(module).items() if "drop" in n and isinstance(v, float) and v > 0] if module else []
        names = [type(module).__name__.lower(), operation, *(name for name, _ in self.functions)]
        given = [v for _, keywords in self.functions for n, v in keywords.items() if "drop" in n]
        is_dropout = held or any("drop" in name for name in names) or any(isinstance(v, float) and v > 0 for v in given)
        (self.dropout if is_dropout else self.draws).setdefault(self.here)


class _Functions(TorchFunctionMode):
    """Which of torch's functions are under way."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", type(func).__name__)
        module = self.watch.running[-1][1] if self.watch.running else None
        if name in NORMS and not isinstance(module, _BatchNorm):
            self.watch.norms.setdefault(f"{self.watch.running[-1][0]}: {name}" if self.watch.running else name)
        self.watch.differentiates |= func is torch.autograd.grad
        self.watch.functions.append((name, kwargs or {}))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.watch.functions.pop()


class _Operations(TorchDispatchMode):
    """Which operations draw: torch marks them, and most of those with a probability draw only where it is above 0."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        packet = func._overloadpacket
        self.watch.uncounted |= "rnn" in packet.__name__
        if torch.Tag.nondeterministic_seeded in func.tags and torch._C._current_graph_task_id() == -1:
            named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | dict(given)
            chances = [value for name, value in named.items() if name in ("dropout_p", "dropout", "drop_p")]
            if not any(chance == 0 for chance in chances):
                self.watch.drawn(packet.__name__)
        found = func(*args, **given)
        operations: Callable[..., int] | None = flop_registry.get(packet)
        if operations is not None and self.watch.flops is not None:
            self.watch.flops += operations(*args, **given, out_val=found)
        return found
