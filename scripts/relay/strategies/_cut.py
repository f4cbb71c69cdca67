"""Cutting a network into contiguous pipeline stages: the cost of layers, the best cuts, the tensors between stages."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate, pairwise

import torch

from relay.base.errors import UserError
from relay.process.devices import generators_kept, synchronise
from relay.task.network import Network

REPETITIONS = 5


class Stage(Network):
    """A part of a network. Its outputs, and the gradients of its inputs, are contiguous, so that they can be sent."""

    @classmethod
    def of(cls, network: Network, names: Sequence[str]) -> Stage:
        """The network's layers with these names: the same modules, computed in the same way."""
        layers = dict(network.named_children())
        return cls({name: layers[name] for name in names}, network.computation)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute all layers. The outputs are contiguous, so that they can be sent, and no views.

        Schedules that compute the gradients of inputs and of weights separately detach a stage's outputs in place.
        torch refuses that for views, such as the outputs of a flattening, or of a linear layer over three dimensions.
        """
        if inputs.requires_grad:
            inputs = inputs.view_as(inputs)  # every step uses the same inputs again, so that their hooks would pile up
            inputs.register_hook(_contiguous)
        outputs = super().forward(inputs)
        return outputs.clone(memory_format=torch.contiguous_format) if outputs._is_view() else outputs.contiguous()


def _contiguous(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.contiguous()


def layer_seconds(network: Network, inputs: torch.Tensor) -> dict[str, float]:
    """Seconds that each layer takes for a forward and a backward pass of these inputs, on their device.

    The result is the least of a few repetitions, because disturbances only add time. The layers are copied first, so
    that neither they nor the random generators change.
    """
    seconds: dict[str, float] = {}
    with generators_kept(inputs.device):
        for name, layer in _copies(network, inputs.device):
            inputs = inputs.detach().requires_grad_(bool(seconds))  # the network's own inputs need no gradient
            times = []
            for _ in range(1 + REPETITIONS):
                started = _now(inputs.device)
                outputs = layer(inputs)
                if outputs.requires_grad:
                    outputs.backward(torch.ones_like(outputs))
                times.append(_now(inputs.device) - started)
            seconds[name] = min(times[1:])
            inputs = outputs
    return seconds


def _now(device: torch.device) -> float:
    """The time in seconds, after the device has finished its queued work."""
    synchronise(device)
    return time.perf_counter()


def _copies(network: Network, device: torch.device) -> Iterator[tuple[str, Network]]:
    """Each layer's name and a network with a copy of that layer alone, not compiled. One copy is made at a time."""
    eager = replace(network.computation, compiled=False)
    for name, layer in network.named_children():
        yield name, Network({name: deepcopy(layer).to(device)}, eager)


def trainable(network: Network) -> set[str]:
    """The names of the layers that have parameters."""
    return {name for name, layer in network.named_children() if next(layer.parameters(), None) is not None}


def cut(costs: Mapping[str, float], count: int, trainable: Collection[str]) -> list[list[str]]:
    """Divide the layers, in their order, into `count` stages such that the costliest stage costs as little as possible.

    Every stage gets a trainable layer; a stage without one could not send a gradient back. Among equally good
    divisions, the one with the least sum of squared costs is chosen. Raises UserError for more stages than trainable
    layers.
    """
    names = list(costs)
    if not 1 <= count <= len(trainable):
        raise UserError(
            f"stages: {count} is not allowed; allowed: 1 to {len(trainable)}, the network's layers with parameters"
        )
    cost = [0.0, *accumulate(costs.values())]
    held = [0, *accumulate(name in trainable for name in names)]
    # best[end] is for the first `end` layers: cost of the costliest stage, sum of squared costs, ends of the stages.
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}
    for _ in range(count):
        longer = {}
        for end in range(1, len(names) + 1):
            candidates = [
                (max(most, cost[end] - cost[start]), squares + (cost[end] - cost[start]) ** 2, [*cuts, end])
                for start, (most, squares, cuts) in best.items()
                if start < end and held[start] < held[end]
            ]
            if candidates:
                longer[end] = min(candidates)
        best = longer
    ends = best[len(names)][2]
    return [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def cut_before(firsts: Sequence[str], names: Sequence[str], trainable: Set[str]) -> list[list[str]]:
    """Divide the layers `names`, in their order, into stages: a further one begins with each of `firsts`.

    Raises UserError for a layer that there is not, one that is not later than the one before, and a stage without a
    trainable layer, which could not send a gradient back.
    """
    starts = [0]
    for first in firsts:
        later = names[starts[-1] + 1 :]
        if first not in later:
            after = f" after {names[starts[-1]]}" if first in names else ""
            raise UserError(
                f"cut_before: '{first}' is not allowed{after}; allowed: later layers of the network: "
                f"{', '.join(later) or 'none'}"
            )
        starts.append(names.index(first))
    stages = [list(names[start:end]) for start, end in pairwise([*starts, len(names)])]
    for stage in stages:
        if not trainable & set(stage):
            raise UserError(
                f"cut_before: the stage of {', '.join(stage)} has no parameters; allowed: stages that have some, "
                f"which are in {', '.join(name for name in names if name in trainable)}"
            )
    return stages


@torch.no_grad()
def flow(network: Network, cuts: Sequence[Sequence[str]], example: torch.Tensor, device: torch.device,
         ) -> list[torch.Tensor]:  # fmt: skip
    """The inputs of each stage and the outputs of the last one, as tensors on the meta device: shapes and types only.

    `example` are a micro-batch's inputs. One sample of zeros is computed by copies of the layers, because only a real
    pass shows the types that autocast chooses. The copies are in evaluation mode, so that no statistics change.
    """
    last = {stage[-1] for stage in cuts}
    passing = torch.zeros(1, *example.shape[1:], dtype=example.dtype, device=device)
    boundaries = [example]
    with generators_kept(device):
        for name, layer in _copies(network, device):
            passing = layer.eval()(passing)
            if name in last:
                shape = (len(example), *passing.shape[1:])
                boundaries.append(torch.empty(shape, dtype=passing.dtype, device="meta", requires_grad=True))
    return boundaries
