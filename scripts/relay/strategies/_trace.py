"""Recording what a model computes, by running it once with tensors that have shapes and types but no data.

The record is a graph of calls. A module that is computed as a whole (a leaf) is one call; all else is a call of one of
torch's functions. Python's own control flow runs while it is recorded, so that it takes the branch of these shapes.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from relay.strategies._record import (
    OF_GRADIENTS,
    PLAIN,
    Applied,
    Like,
    Record,
    Whole,
    after,
    changed_since,
    first_line,
    held_by,
    named,
    printable,
    set_item,
    storage_of,
    transformed,
    under,
    versions,
)
from relay.task.batches import opened
from relay.task.calls import tensors_in
from relay.task.modes import Operations

CONSTANTS = count()


class Tracer(TorchFunctionMode):
    """One pass through a model with arguments and keywords `given`, all on the device, written down.

    `leaves` names the modules that are one call. `really` computes one that cannot be computed without data.
    `stale` are tensors of the batch before, by id, and whether each is the same for all batches.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        given: Any,
        *,
        leaves: Set[str],
        really: Callable[..., Any],
        stale: Mapping[int, bool],
    ) -> None:
        super().__init__()
        self.model, self.device, self.given, self.leaves = model, device, given, leaves
        self.really, self.stale = really, stale
        self.graph = fx.Graph()
        self.constants: dict[str, Any] = {}
        self.modules = {id(module): name for name, module in model.named_modules()}
        self.names = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        self.held = {name: list(map(id, held_by(module))) for name, module in model.named_modules() if name in leaves}
        self.node_of: dict[int, fx.Node] = {}
        self.alive: dict[int, torch.Tensor] = {}  # so that no other tensor gets the id of a known one
        self.stack = [""]
        self.inside: tuple[set[int], set[int]] | None = None  # of a leaf: what it was given, what it holds
        self.base, self.calls = self.ambient, count()
        self.drew = False  # random numbers, since the last call began
        self.record: Record

    def run(self) -> None:
        """Compute the model and write down `record`."""
        inputs: list[fx.Node] = []
        for leaf in pytree.tree_leaves(self.given):
            if isinstance(leaf, torch.Tensor):
                inputs.append(self.graph.placeholder(f"input_{len(inputs)}"))
                self._know(leaf, inputs[-1])
        with calls_seen(self), self, Operations(self._see_draw):
            outputs = self.model(*self.given[0], **self.given[1])
        leaves, structure = pytree.tree_flatten(opened(outputs))
        nodes = [self._output(leaf) for leaf in leaves]
        if not any(isinstance(node, fx.Node) for node in nodes):
            raise Whole("", f"its outputs, of type {type(outputs).__name__}, hold no tensors that can be found")
        held = {self.names[id(parameter)]: parameter.requires_grad for parameter in self.model.parameters()}
        names = frozenset(name for name, trained in held.items() if trained), frozenset(held)
        self.record = Record(self.graph, inputs, nodes, structure, self.constants, *names, self.device)

    def _see_draw(self, operation: Any, *_: Any) -> None:
        self.drew |= torch.Tag.nondeterministic_seeded in operation.tags

    def _output(self, leaf: Any) -> Any:
        """A leaf of the outputs; what is neither a tensor nor plain, such as a cache, is left out."""
        if isinstance(leaf, torch.Tensor):
            return self._node(leaf)
        return leaf if type(leaf) in PLAIN else None

    def left_behind(self) -> dict[int, bool]:
        """The tensors of this pass by id, and whether each is the same for all batches, as a table of positions is."""
        same: set[fx.Node] = set()
        for node in self.graph.nodes:
            moving = node.op == "placeholder" or node.meta.get("uses") or node.meta.get("draws")
            if not moving and same.issuperset(node.all_input_nodes):
                same.add(node)
        return {key: node in same for key, node in self.node_of.items()}

    @property
    def ambient(self) -> tuple[bool, torch.dtype | None]:
        """Whether gradients are wanted, and autocast's type."""
        kind = self.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return torch.is_grad_enabled(), autocast

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside is not None:
            self._within(args, kwargs)
            return function(*args, **kwargs)
        if function is torch.Tensor.__iter__:
            return iter(self._call(torch.unbind, args, kwargs))
        if getattr(function, "__name__", "") == "__get__":
            return self._call(getattr, (args[0], function.__self__.__name__), {})
        if function in OF_GRADIENTS or getattr(function, "__name__", "") == "__set__":
            self._refuse(f"calls {named(function)}, which works on one process alone")
        return self._call(function, args, kwargs)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a function, and write it down if it gives tensors or changes one."""
        before, self.drew = versions(args, kwargs), False
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self._refuse(f"{named(function)}: {first_line(error)}")
        changed = changed_since(before)
        if not changed and not tensors_in(result):
            return result
        if transformed((args, kwargs, result)):
            self._refuse("computes with a transform of torch.func, which works on one process alone")
        given = self._argument(args), self._argument(kwargs)
        if function is torch.Tensor.__setitem__:
            function = set_item
        plain = self.ambient == self.base and printable(function)
        node = self.graph.call_function(function, *given) if plain else self._under(self._constant(function), *given)
        self._write(node, result if tensors_in(result) else changed[0], changed)
        return result

    def leaf(self, name: str, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute a module as a whole and write it down as one call."""
        held = held_by(module)
        if list(map(id, held)) != self.held[name]:  # as torch.func.functional_call does
            self._refuse(f"calls {name} with parameters that are not its own")
        with torch._C.DisableTorchFunction():
            before, self.drew = versions(args, kwargs, held), False
        self.stack.append(name)
        self.inside = {id(tensor) for tensor in tensors_in((args, kwargs))}, {id(tensor) for tensor in held}
        try:
            outputs = call(module, *args, **kwargs)
        except Exception:
            outputs = self._really(name, module, args, kwargs)
        finally:
            self.inside = None
        with torch._C.DisableTorchFunction():
            given = self._argument(args), self._argument(kwargs)
            if self.ambient == self.base:
                node = self.graph.call_module(name, *given)
            else:
                node = self._under(self.graph.create_node("get_attr", name), *given)
            self._write(node, outputs, changed_since(before), [self.names[id(tensor)] for tensor in held])
        self.stack.pop()
        return outputs

    def _really(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        try:
            return self.really(module, args, kwargs)
        except Exception as error:
            raise Whole(self.stack[-2], f"{name}: {first_line(error)}") from None

    def _under(self, function: fx.Node, args: Any, kwargs: Any) -> fx.Node:
        return self.graph.call_function(under, (*self.ambient, self.device, function, *args), kwargs)

    def _write(self, node: fx.Node, outputs: Any, changed: list[torch.Tensor], uses: Sequence[str] = ()) -> None:
        """What is known of a call, and a node for each tensor that it gives."""
        overwritten = {storage_of(tensor) for tensor in changed}
        about = {"call": next(self.calls), "path": self.stack[-1]}
        node.meta |= about | {"draws": self.drew, "uses": list(uses), "overwrites": overwritten}
        node.meta["changes"] = [self.names[id(tensor)] for tensor in changed if id(tensor) in self.names]
        result_ids = {id(tensor) for tensor in tensors_in(outputs)}
        for tensor in [*self.alive.values()]:  # what shares the memory that was changed is read after the change
            if id(tensor) not in result_ids and storage_of(tensor) in overwritten:
                later = self.graph.call_function(after, (self.node_of[id(tensor)], node))
                later.meta |= about
                self._know(tensor, later)
        if isinstance(outputs, torch.Tensor):
            self._know(outputs, node)
            return
        leaves = self.graph.call_function(pytree.tree_leaves, (node,))
        leaves.meta |= about
        opened(outputs)
        for place, leaf in enumerate(pytree.tree_leaves(outputs)):
            if isinstance(leaf, torch.Tensor):
                item = self.graph.call_function(operator.getitem, (leaves, place))
                item.meta |= about
                self._know(leaf, item)

    def _know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        node.meta |= {"like": Like.of(tensor), "storage": storage_of(tensor)}
        self.node_of[id(tensor)] = node
        self.alive[id(tensor)] = tensor

    def _argument(self, value: Any) -> Any:
        """A value as the graph holds it: nodes in the place of tensors, and names of what cannot be printed."""
        if isinstance(value, torch.Tensor):
            return self._node(value)
        if isinstance(value, slice):
            return slice(*map(self._argument, (value.start, value.stop, value.step)))
        if isinstance(value, torch.Size) or type(value) in (tuple, list):
            return (list if type(value) is list else tuple)(map(self._argument, value))
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {key: self._argument(each) for key, each in value.items()}
        return value if type(value) in PLAIN else self._constant(value)

    def _node(self, tensor: torch.Tensor) -> fx.Node:
        if id(tensor) in self.names:
            node = self.graph.create_node("get_attr", self.names[id(tensor)])
            node.meta |= {"like": Like.of(tensor), "uses": [self.names[id(tensor)]]}
            return node
        if id(tensor) in self.node_of:
            return self.node_of[id(tensor)]
        if self.stale.get(id(tensor)) is False:
            self._refuse("uses a tensor that the batch before has left behind")
        if isinstance(tensor, FakeTensor) and id(tensor) not in self.stale:
            self._refuse("uses a tensor that was computed out of sight of torch's functions")
        return self._constant(tensor)

    def _constant(self, value: Any) -> fx.Node:
        if id(value) in self.modules:  # what it would compute, and with which parameters, nobody sees
            self._refuse(f"passes the module {self.modules[id(value)]} on to a function")
        if tensors_in(value) and not isinstance(value, torch.Tensor):
            self._refuse(f"passes tensors on in a {type(value).__name__}")
        name = f"_constant_{next(CONSTANTS)}"
        self.constants[name] = value
        return self.graph.create_node("get_attr", name)

    def _within(self, args: Any, kwargs: Any) -> None:
        """A leaf may use what it was given, what it holds and what it has computed; nothing else of the model's."""
        assert self.inside is not None
        given, held = self.inside
        for tensor in tensors_in((args, kwargs)):
            if id(tensor) in given or id(tensor) in held:
                continue
            if id(tensor) in self.node_of or id(tensor) in self.names:
                name = self.stack[-1]
                raise Whole(name.rpartition(".")[0], f"{name} uses tensors of the model that are not its arguments")

    def _refuse(self, reason: str) -> Any:
        raise Whole(self.stack[-1], reason) from None


@contextmanager
def calls_seen(tracer: Tracer) -> Iterator[None]:
    """Calls of modules and of functions with gradients of their own go by way of the tracer."""
    call, apply = nn.Module.__call__, Function.__dict__["apply"]

    def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = tracer.modules.get(id(module))
        if tracer.inside is not None or name is None or transformed((args, kwargs)):
            return call(module, *args, **kwargs)
        if name in tracer.leaves:
            return tracer.leaf(name, module, call, args, kwargs)
        tracer.stack.append(name)
        try:
            return call(module, *args, **kwargs)
        finally:
            tracer.stack.pop()

    def applied(function: type[Function], *args: Any, **kwargs: Any) -> Any:
        if tracer.inside is not None:
            return apply.__func__(function, *args, **kwargs)
        if function is CheckpointFunction:  # use_reentrant=True; a stage computes it once, and keeps what it computes
            return args[0](*args[2:])
        with torch._C.DisableTorchFunction():
            return tracer._call(Applied(function, apply.__func__), args, kwargs)

    nn.Module.__call__ = called  # type: ignore[method-assign]
    Function.apply = classmethod(applied)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.__call__ = call  # type: ignore[method-assign]
        Function.apply = apply  # type: ignore[method-assign]
