"""What a model and its loss call: draws, dropout, BatchNorm by functions, operations, and cross entropy."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd.graph import get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from relay.task import calls
from relay.task.modes import FunctionMode, Operations, arguments_by_name, flops

NORMS = ("batch_norm",)
# Cross entropy without these is what strategies can divide by classes.
USUAL = {"weight": None, "reduction": "mean", "label_smoothing": 0.0, "ignore_index": -100}


class CardObserver(calls.PassObserver):
    """Watches modules of one model. The results are in order, each once, as `module`, or `module: function`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.dropout: dict[str, None] = {}
        self.draws: dict[str, None] = {}
        self.norms: dict[str, None] = {}
        self.counted = 0  # operations
        self.uncounted = self.differentiates = False
        self.functions: list[tuple[str, Mapping[str, Any]]] = []  # those of torch that are under way

    @property
    def flops(self) -> int | None:
        """The operations; None where something is computed that torch does not count."""
        return None if self.uncounted else self.counted

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what is computed within."""
        fused_off = sdpa_kernel(SDPBackend.MATH)  # fused kernels draw where nobody sees it
        with super().watching(), fused_off, Operations(self._operation):
            yield

    def called(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of a function, which is under way meanwhile."""
        name = getattr(func, "__name__", type(func).__name__)
        if name in NORMS and not isinstance(self.module, _BatchNorm):
            self.norms.setdefault(f"{self.running[-1]}: {name}" if self.running else name)
        self.differentiates |= func is torch.autograd.grad or _in_derivative()
        self.functions.append((name, kwargs))
        try:
            return func(*args, **kwargs)
        finally:
            self.functions.pop()

    @property
    def module(self) -> nn.Module | None:
        """The innermost module that is under way."""
        return self.modules[self.running[-1]] if self.running else None

    @property
    def here(self) -> str:
        """The innermost module that is under way, and the function that it calls."""
        own = type(self.module).__module__.startswith("torch.nn.")
        parts = [*self.running[-1:], *(name for name, _ in self.functions[:1] if not own)]
        return ": ".join(filter(None, parts)) or "model"

    def _operation(self, func: Any, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count an operation, and note whether it draws: most that torch marks draw where a probability is above 0."""
        name = func._overloadpacket.__name__
        self.uncounted |= "rnn" in name
        if torch.Tag.nondeterministic_seeded in func.tags and torch._C._current_graph_task_id() == -1:
            named = arguments_by_name(func, args, kwargs)
            if not any(named.get(chance) == 0 for chance in ("dropout_p", "dropout", "drop_p")):
                self.drawn(name)
        self.counted += flops(func, args, kwargs, result)

    def drawn(self, operation: str) -> None:
        """An operation has drawn random numbers."""
        held = vars(self.module) if self.module is not None else {}
        chances = [value for name, value in held.items() if "drop" in name and isinstance(value, float)]
        chances += [value for _, given in self.functions for name, value in given.items()
                    if "drop" in name and isinstance(value, float)]  # fmt: skip
        names = [type(self.module).__name__.lower(), operation, *(name for name, _ in self.functions)]
        is_dropout = any(chance > 0 for chance in chances) or any("drop" in name for name in names)
        (self.dropout if is_dropout else self.draws).setdefault(self.here)


class LossCalls(FunctionMode):
    """Sees a loss call torch's cross entropy, and join (N, 1) with (N,): `broadcast` is N, and 0 where it does not.

    `differentiates`: it takes gradients through the model that have gradients themselves, as a penalty on them does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broadcast, self.differentiates = 0, False
        self.entropies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a function, whose arguments are looked at."""
        result = func(*args, **kwargs)
        if func is torch.autograd.grad and kwargs.get("create_graph"):
            ends = (calls.tensors_in(args[:1]), calls.tensors_in((args[1:2], kwargs.get("inputs"))))
            self.differentiates |= _through_model(*ends)
        given = calls.tensors_in((args, dict(kwargs)))
        self.differentiates |= _in_derivative() and any(isinstance(each, nn.Parameter) for each in given)
        shapes = [tuple(each.shape) for each in given]
        joined = [each[0] for each in shapes if each[1:] == (1,) and each[:1] in shapes]
        if isinstance(result, torch.Tensor) and result.dim() != 1:  # one that is indexed by the other gives [N]
            self.broadcast = max([self.broadcast, *joined])
        if func is F.cross_entropy and all(kwargs.get(name, usual) == usual for name, usual in USUAL.items()):
            self.entropies.append((args[0] if args else kwargs["input"], result))
        return result

    def entropy_is_all(self, loss: torch.Tensor, outputs: Any) -> bool:
        """Whether the loss is the cross entropy of outputs, or of a view of them."""
        held = {each.untyped_storage()._cdata for each in calls.tensors_in(outputs)}
        return any(result is loss and given.untyped_storage()._cdata in held for given, result in self.entropies)


def _in_derivative() -> bool:
    """Whether something is computed within a derivative of torch.func, such as `grad` or `jvp`."""
    kinds = [each.key() for each in get_interpreter_stack() or ()]
    return TransformType.Grad in kinds or TransformType.Jvp in kinds


def _through_model(outputs: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> bool:
    """Whether a parameter is read between the two, or is one of the inputs."""
    last = {get_gradient_edge(each).node for each in inputs}
    ahead, met = [get_gradient_edge(each).node for each in outputs if each.requires_grad], set[Any]()
    while ahead:
        met.add(node := ahead.pop())
        if isinstance(getattr(node, "variable", None), nn.Parameter):
            return True
        if node not in last:
            ahead += [each for each, _ in node.next_functions if each is not None and each not in met]
    return False
