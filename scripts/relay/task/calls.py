"""What a model's forward pass does: seen by running a copy of it once, on the meta device, which computes shapes alone.

The copy needs no memory. A model that reads values, such as a sequence's length, cannot run there: it runs on its own
device, with the values given.
"""

import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from relay.base.grouped import gathered
from relay.task.modes import FunctionMode

CACHE = type(functools.cache(lambda: None))
CACHING = ("torch", "relay")  # packages whose cached functions keep no tensors that they are given


def ghost(model: nn.Module) -> nn.Module:
    """A copy of a model on the meta device. No value is copied; weights that were tied are tied."""
    tensors = {id(held): _without_values(held) for held in _held(model)}
    return copied(model, tensors)


def copied(module: nn.Module, instead: Mapping[int, Any] | None = None) -> nn.Module:
    """A deep copy, with `instead` in place of what has these ids.

    What a pass has left in the model, such as the weight of `torch.nn.utils.weight_norm`, has a graph, which is not
    copied.
    """
    computed = {id(each): each.detach().clone() for each in _held(module) if not each.is_leaf}
    return deepcopy(module, computed | dict(instead or {}))


def _held(model: nn.Module) -> list[torch.Tensor]:
    """All tensors that a model holds, also in lists and dicts."""
    met: dict[int, Any] = {}

    def again(part: Any) -> bool:  # a list may contain itself
        return met.setdefault(id(part), held := [part]) is not held

    parts = [each for module in model.modules() for each in tree_leaves([*vars(module).values()], is_leaf=again)]
    return [each for each in parts if isinstance(each, torch.Tensor)]


def in_mode(model: nn.Module, training: bool) -> nn.Module:
    """The model, in training or in evaluation mode. A `train` of the user's own may return nothing."""
    model.train(training)
    return model


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model, which has moved to a device. A `to` of the user's own may return nothing."""
    model.to(device)
    return model


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta", requires_grad=False)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


@contextmanager
def emptied() -> Iterator[None]:
    """Empty the caches of other people's functions at the end: they may hold tensors that have no data.

    A model may keep its table of positions in a function with `functools.cache`. What a pass on the meta device, or
    with torch's fake tensors, has left there would be handed to the next real one.
    """
    try:
        yield
    finally:
        for each in gc.get_objects():
            if type(each) is CACHE and str(each.__module__).partition(".")[0] not in CACHING:
                each.cache_clear()


class PassObserver(FunctionMode):
    """Sees every function of torch that a model calls. `running` are the names of its modules that are under way."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules, self.running = dict(model.named_modules()), list[str]()

    @classmethod
    def of(cls, model: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Self | None:
        """What is seen of one forward pass in training mode; None where the model cannot be run here.

        The model does not change, and no random number is drawn.
        """
        for place in (_on_meta, _as_it_is):
            try:
                copy, (given, named) = place(model, (tuple(arguments), dict(keywords)))
                watch = cls(in_mode(copy, training=True))
                with torch.random.fork_rng(devices=[]), torch.enable_grad(), watch.watching():
                    outputs = copy(*given, **named)
            except Exception:  # whatever a user's model raises: it wants values, or a GPU
                continue
            watch.returned(outputs)
            return watch
        return None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what is computed within."""
        with ExitStack() as stack:
            for name, module in self.modules.items():
                stack.callback(module.register_forward_pre_hook(partial(self._begin, name), with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(partial(self._end, name), always_call=True).remove)
            stack.enter_context(self)
            yield

    def called(self, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of a function, which `computed` is told of."""
        result = func(*args, **kwargs)
        self.computed(func, args, kwargs, result)
        return result

    def computed(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """A function of torch was called."""

    def begun(self, name: str, args: Sequence[Any]) -> None:
        """A module was called, which `running` does not have yet."""

    def ended(self, name: str, outputs: Any) -> None:
        """A module has returned; `running` has it no longer."""

    def returned(self, outputs: Any) -> None:
        """The model has returned its outputs."""

    def _begin(self, name: str, _: nn.Module, args: Sequence[Any], __: Mapping[str, Any]) -> None:
        self.begun(name, args)
        self.running.append(name)

    def _end(self, name: str, _: nn.Module, __: Any, outputs: Any) -> None:
        self.running.pop()
        self.ended(name, outputs)


class Readings(PassObserver):
    """Where parameters are read. `within[name]` are the modules that are under way whenever that parameter is read.

    Only these may be units that hold it: FSDP, say, gathers a unit's parameters while the unit is called. A parameter
    that is never read is not among them. `opaque` are no units either: their outputs hide tensors in objects that torch
    cannot open, or they are called with parameters that are not their own.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.within: dict[str, frozenset[str]] = {}
        self.opaque: set[str] = set()
        self._names = names_of(model)

    def computed(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        if not tensors_in(result):  # its shape or type was asked for
            return
        for tensor in tensors_in((args, kwargs)):
            for name in self._names.get(id(tensor), ()):
                self.within[name] = self.within.get(name, frozenset(self.running)) & frozenset(self.running)

    def begun(self, name: str, args: Sequence[Any]) -> None:
        if not all(id(each) in self._names for each in self.modules[name].parameters()):
            self.opaque.add(name)  # FSDP would put its own in their place

    def ended(self, name: str, outputs: Any) -> None:
        if not tensors_in(outputs):
            self.opaque.add(name)


def names_of(model: nn.Module) -> dict[int, list[str]]:
    """The names of each parameter, by its id; a tied one has several."""
    return gathered((id(parameter), name) for name, parameter in model.named_parameters(remove_duplicate=False))


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors of any structure that torch can open, also those of slices."""
    leaves = tree_leaves(tree)
    bounds = [part for leaf in leaves if isinstance(leaf, slice) for part in (leaf.start, leaf.stop, leaf.step)]
    return [leaf for leaf in [*leaves, *bounds] if isinstance(leaf, torch.Tensor)]


def _on_meta(model: nn.Module, given: Any) -> tuple[nn.Module, Any]:
    return ghost(model), tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), given)


def _as_it_is(model: nn.Module, given: Any) -> tuple[nn.Module, Any]:
    return copied(model), given
