"""Contiguous stages of a network: what its layers cost, where to cut it, and what passes from stage to stage."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate

import torch

from relay.base.errors import UserError
from relay.task.network import Network

REPETITIONS = 5


class Stage(Network):
    """A part of a network whose outputs, and whose inputs' gradients, can be sent as they are."""

    @classmethod
    def of(cls, network: Network, names: Sequence[str]) -> Stage:
        """The network's layers of these names: the same modules, computed in the same way."""
        layers = dict(network.named_children())
        return cls({name: layers[name] for name in names}, network.computation)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Through all layers; the outputs are contiguous, which sending asks for, and no view.

        Schedules that part the gradients of inputs from those of weights detach a stage's outputs in place, which
        torch refuses for views: a stage that ends in a flattening, or in a linear layer over more than two dimensions.
        """
        if inputs.requires_grad:
            inputs = inputs.view_as(inputs)  # not a hook on the inputs: they are a buffer that every step uses again
            inputs.register_hook(_contiguous)
        outputs = super().forward(inputs)
        return outputs.clone(memory_format=torch.contiguous_format) if outputs._is_view() else outputs.contiguous()


def _contiguous(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.contiguous()


def layer_seconds(network: Network, inputs: torch.Tensor) -> dict[str, float]:
    """Seconds that each layer takes for a forward and a backward pass of these inputs, on their device.

    The least of a few repetitions, as whatever disturbs one only adds to it; on copies of the layers, so that neither
    they nor the random generators change.
    """
    seconds: dict[str, float] = {}
    with _traceless(inputs.device):
        for name, layer in _copies(network, inputs.device):
            inputs = inputs.detach().requires_grad_(bool(seconds))  # the first layer's gradient goes nowhere
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
    """Seconds of a clock, once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _copies(network: Network, device: torch.device) -> Iterator[tuple[str, Network]]:
    """Each layer by name as a network of its own, copied to the device one after the other, and not compiled."""
    eager = replace(network.computation, compiled=False)
    for name, layer in network.named_children():
        yield name, Network({name: deepcopy(layer).to(device)}, eager)


@contextmanager
def _traceless(device: torch.device) -> Iterator[None]:
    """What runs here moves no random generator that training draws from."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def trainable(network: Network) -> set[str]:
    """The layers that have parameters."""
    return {name for name, layer in network.named_children() if next(layer.parameters(), None) is not None}


def cut(costs: Mapping[str, float], count: int, trainable: Collection[str]) -> list[list[str]]:
    """The layers, in their order, as `count` stages of which the costliest costs as little as can be.

    Every stage has a trainable layer: without one it would have no gradient to send back. Among the best cuts, one of
    even stages (by the sum of their squares) is taken. Raises UserError for more stages than trainable layers.
    """
    names = list(costs)
    if not 1 <= count <= len(trainable):
        raise UserError(
            f"stages: {count} is not allowed; allowed: 1 to {len(trainable)}, the network's layers with parameters"
        )
    cost = [0.0, *accumulate(costs.values())]
    held = [0, *accumulate(name in trainable for name in names)]
    # best[end]: costliest stage, sum of squares and cuts of the first `end` layers in the stages made so far.
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}
    for _ in range(count):
        longer = {}
        for end in range(1, len(names) + 1):
            found = [
                (max(most, cost[end] - cost[start]), squares + (cost[end] - cost[start]) ** 2, [*cuts, end])
                for start, (most, squares, cuts) in best.items()
                if start < end and held[start] < held[end]
            ]
            if found:
                longer[end] = min(found)
        best = longer
    ends = best[len(names)][2]
    return [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@torch.no_grad()
def flow(network: Network, cuts: Sequence[Sequence[str]], example: torch.Tensor, device: torch.device,
         ) -> list[torch.Tensor]:  # fmt: skip
    """What enters each stage, and at last what leaves the last one, for inputs like the example: on the meta device.

    One sample of zeros goes through copies of the layers in evaluation mode. Only a real pass tells the types that
    autocast gives, or the shapes where a layer looks at its data, and this one moves no statistics and no dropout.
    """
    last = {stage[-1] for stage in cuts}
    passing = torch.zeros(1, *example.shape[1:], dtype=example.dtype, device=device)
    boundaries = [example]
    with _traceless(device):
        for name, layer in _copies(network, device):
            passing = layer.eval()(passing)
            if name in last:
                shape = (len(example), *passing.shape[1:])
                boundaries.append(torch.empty(shape, dtype=passing.dtype, device="meta", requires_grad=True))
    return boundaries
