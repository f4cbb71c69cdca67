"""A stage of a model: the modules and parameters that its calls need, under the model's names, and the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Self

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from relay.strategies import _cut
from relay.strategies._boundary import Boundary
from relay.strategies._recorder import Recorder
from relay.task import batches
from relay.task.bound import BoundTask
from relay.task.calls import copied, in_mode


class Plan:
    """How a model is cut: for batches of any shapes, in training and in evaluation.

    Every rank makes the same one. The model's own modules are taken over by the stages.
    """

    def __init__(self, task: BoundTask, model: nn.Module, device: torch.device, batch: batches.Batch) -> None:
        self.task, self.model, self.device = task, model, device
        self.recorder = Recorder(model, device, [name for name, _ in task.blocks(model)])
        self.owned: Set[str] = frozenset()
        self.calls = self._calls(batch, training=True)
        self.owned = self.calls.owned
        self.cut_calls: dict[Any, tuple[_cut.Calls, list[int]]] = {}
        self.example = batch
        self.owners: dict[str, int] = {}
        self.count = 1

    def cut(self, starts: Sequence[int]) -> None:
        """Divide the model at these places of the recorded calls, of which the last is the end."""
        self.count, self.owners = len(starts) - 1, self.calls.owners(starts)
        self.cut_calls[True, shapes(self.example)] = self.calls, list(starts)

    def owner(self, name: str) -> int:
        """The stage of a parameter or buffer; the last one has what the training does not use."""
        return self.owners.get(name, self.count - 1)

    def at(self, training: bool, batch: batches.Batch) -> tuple[_cut.Calls, list[int]]:
        """The calls for a batch of these shapes, and where the stages begin. Raises Untraceable."""
        key = training, shapes(batch)
        if key not in self.cut_calls:
            calls = self._calls(batch, training)
            owners = {name: self.owner(name) for used in calls.uses for name in used}
            self.cut_calls[key] = calls, calls.divided(owners, self.count)
        return self.cut_calls[key]

    def _calls(self, batch: batches.Batch, training: bool) -> _cut.Calls:
        arguments, keywords = self.task.arguments(batch)
        record = self.recorder.record(arguments, keywords, training, self.task.autocast)
        return _cut.Calls(record, training, self.owned)

    def release(self, held: Sequence[nn.Module]) -> None:
        """Keep only what these stages hold: elsewhere nothing takes memory."""
        kept = {id(tensor) for stage in held for _, tensor in named_tensors(stage)}
        for module in self.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in kept:
                    module._parameters[name] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)


class Program:
    """A stage's calls for one mode, and one batch's shapes."""

    def __init__(self, calls: _cut.Calls, starts: Sequence[int], stage: Stage) -> None:
        first, last = starts[stage.relay_index], starts[stage.relay_index + 1]
        self.record, ends = calls.record, stage.relay_index == len(starts) - 2
        entering, leaving = calls.crossing(first) if stage.relay_index else [], calls.crossing(last)
        self.enters = Boundary([node.meta["like"] for node in entering])
        self.leaves = Boundary([] if ends else [node.meta["like"] for node in leaving])
        wanted = self.record.outputs if ends else leaving
        own = [node for node, place in calls.place.items() if first <= place < last and _needed(node, leaving)]
        graph = extracted(self.record.graph, [*entering, *self.record.inputs], own, wanted, calls.free)
        overwritten = {storage for node in self.record.graph.nodes for storage in node.meta.get("overwrites", ())}
        self.copied = [node.meta["storage"] in overwritten for node in self.record.inputs]
        self.takes_inputs = any(node.users for node in graph.find_nodes(op="placeholder")[len(entering) :])
        for node in graph.nodes:
            node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), stage.relay_placed)
            if node.op in ("get_attr", "call_module"):
                stage.relay_hold(str(node.target), self.record.constants)
        stage.train(stage.training)
        run: Callable[..., Any] = type(fx.GraphModule(stage, graph)).forward
        self.run = torch.compile(run) if stage.relay_plan.task.compiled else run


class Stage(nn.Module):
    """The part of a model between two cuts. It computes `relay_batch`, whose inputs every stage has for itself.

    `relay_ending`, in the last stage, makes of outputs and batch what it returns in training.
    Other names are left to the model's own children, which may be called `plan` or `batch`.
    """

    def __init__(self, plan: Plan, index: int, device: torch.device) -> None:
        super().__init__()
        self.relay_plan, self.relay_index, self.relay_device = plan, index, device
        self.relay_programs: dict[Any, Program] = {}
        self.relay_batch: batches.Batch = None
        self.relay_ending: Callable[[Any, batches.Batch], torch.Tensor] | None = None
        first = {id(tensor): name for name, tensor in reversed([*named_tensors(plan.model)])}
        calls, starts = next(iter(plan.cut_calls.values()))
        for node in calls.nodes[starts[index] : starts[index + 1]]:
            attributes = [each for each in node.all_input_nodes if each.op == "get_attr"]
            for each in (node, *attributes) if node.op == "call_module" else attributes:
                self.relay_hold(str(each.target), calls.record.constants)
        for name, tensor in named_tensors(plan.model):
            if plan.owner(first[id(tensor)]) == index:
                self.relay_hold(name, {})
        self.train()
        self.to(device)

    def relay_hold(self, name: str, constants: Mapping[str, Any]) -> None:
        """Take a module, parameter, buffer or constant, under its name. Modules without parameters are copied."""
        if name in constants:
            object.__setattr__(self, name, constants[name])
            return
        *path, last = name.split(".")
        place: nn.Module = self
        origin: nn.Module = self.relay_plan.model
        for part in path:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            place, origin = place.get_submodule(part), origin.get_submodule(part)
        # What only holds a parameter that was read by itself gives way to the module, once that is called.
        there = type(place._modules.get(last)) is not nn.Module and last in place._modules
        if there or last in place._parameters or last in place._buffers:
            return
        if last in origin._parameters:
            place.register_parameter(last, origin._parameters[last])
        elif last in origin._buffers:
            lasting = last not in origin._non_persistent_buffers_set
            buffer = origin._buffers[last]
            place.register_buffer(last, None if buffer is None else buffer.to(self.relay_device), persistent=lasting)
        else:
            module = origin.get_submodule(last)
            owned = any(f"{name}.{each}" in self.relay_plan.owned for each, _ in named_tensors(module))
            place.add_module(last, module if owned else copied(module))

    def train(self, mode: bool = True) -> Self:
        """Turn each module to its mode in the whole model, whose own `train` may keep a part in evaluation mode."""
        super().train(mode)
        whole = dict(in_mode(self.relay_plan.model, mode).named_modules(remove_duplicate=False))
        for name, module in self.named_modules():
            module.training = whole.get(name, self).training
        return self

    def relay_placed(self, value: Any) -> Any:
        """A device of the record as the stage's own."""
        return self.relay_device if isinstance(value, torch.device) and value == self.relay_plan.device else value

    def relay_program(self) -> Program:
        """The calls for the batch, in the present mode."""
        key = self.training, shapes(self.relay_batch)
        if key not in self.relay_programs:
            self.relay_programs[key] = Program(*self.relay_plan.at(self.training, self.relay_batch), self)
        return self.relay_programs[key]

    def __call__(self, *sent: torch.Tensor) -> Any:
        """Compute the batch from what was sent, which `forward` gets as one argument.

        On a GPU, FSDP moves the arguments there. The first stage gets none, and torch before 2.13 fails at that.
        """
        return super().__call__(sent)

    def forward(self, sent: Sequence[torch.Tensor]) -> Any:
        """From what the stage before has sent to what the next one gets; of the last stage, the outputs."""
        program = self.relay_program()
        values = self.relay_compute(program.enters.unpacked(sent))
        return program.leaves.packed(values) if self.relay_index < self.relay_plan.count - 1 else values

    def relay_compute(self, values: Sequence[torch.Tensor]) -> Any:
        """What the next stage needs; of the last stage, the outputs, or in training what `relay_ending` makes."""
        program = self.relay_program()
        inputs: list[torch.Tensor | None]
        if program.takes_inputs:
            leaves = batches.leaves(self.relay_plan.task.arguments(self.relay_batch))
            inputs = [leaf.clone() if copied else leaf for leaf, copied in zip(leaves, program.copied, strict=True)]
        else:
            inputs = [None] * len(program.copied)
        with self.relay_plan.task.arithmetic(self.relay_device):
            results = program.run(self, *values, *inputs)
        if self.relay_index < self.relay_plan.count - 1:
            return results
        outputs = pytree.tree_unflatten(results, program.record.structure)
        return self.relay_ending(outputs, self.relay_batch) if self.relay_ending and self.training else outputs


def shapes(batch: batches.Batch) -> tuple[torch.Size, ...]:
    """The shapes of a batch's tensors."""
    return tuple(leaf.shape for leaf in batches.leaves(batch))


def named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers under all of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return [*parameters, *model.named_buffers(remove_duplicate=False)]


def _needed(node: fx.Node, leaving: Sequence[fx.Node]) -> bool:
    """Whether anything happens by this node, or a later one takes it."""
    return bool(node.users) or "uses" in node.meta or node in leaving


def extracted(
    graph: fx.Graph, given: Sequence[fx.Node], own: Sequence[fx.Node], wanted: Sequence[Any], free: set[fx.Node]
) -> fx.Graph:
    """The part of a graph that computes the nodes `own`, with what they need of `free`, from those `given`.

    Its outputs are `wanted`: nodes, or values that are no tensors.
    """
    needed: set[fx.Node] = set()
    ahead = [*own, *(node for node in wanted if isinstance(node, fx.Node) and node not in given)]
    while ahead:
        node = ahead.pop()
        if node not in needed and node not in given:
            needed.add(node)
            ahead += [each for each in node.all_input_nodes if each in free or each.op == "get_attr"]
    part = fx.Graph()
    copies = {node: part.placeholder(f"given_{place}") for place, node in enumerate(given)}
    for node in graph.nodes:
        if node in needed:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[each] if isinstance(each, fx.Node) else each for each in wanted))
    return part


def merged(stages: Sequence[nn.Module]) -> nn.Module:
    """One module with the modules and parameters of several stages; it only serves names and modes."""
    whole = nn.Module()
    for stage in stages:
        _merge(stage, whole)
    return whole


def _merge(part: nn.Module, whole: nn.Module) -> None:
    for name, parameter in part._parameters.items():
        whole.register_parameter(name, parameter)
    for name, buffer in part._buffers.items():
        whole.register_buffer(name, buffer, persistent=name not in part._non_persistent_buffers_set)
    for name, child in part._modules.items():
        assert child is not None
        if type(child) is nn.Module:
            if name not in whole._modules:
                whole.add_module(name, nn.Module())
            _merge(child, whole.get_submodule(name))
        elif name not in whole._modules:
            whole.add_module(name, child)
