"""What the calls of a recorded model cost, by which it is cut into stages of equal cost."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx, nn

from relay.process.devices import generators_kept, synchronise
from relay.strategies._cut import Calls
from relay.strategies._record import Record
from relay.task.calls import copied

REPETITIONS = 5


def call_seconds(
    calls: Calls, model: nn.Module, device: torch.device, autocast: torch.dtype | None
) -> dict[str, float]:
    """Seconds that each call takes for a forward and a backward pass, by the names of its node, on the device.

    The result is the least of a few repetitions, because disturbances only add time. Modules are copied, one at a time,
    so that neither they nor the random generators change.
    """
    with generators_kept(device):
        return {node.name: _seconds(node, calls.record, model, device, autocast) for node in calls.nodes}


def _seconds(
    node: fx.Node, record: Record, model: nn.Module, device: torch.device, autocast: torch.dtype | None
) -> float:
    def value_of(each: fx.Node) -> Any:
        if like := each.meta.get("like"):
            return like.empty(device).zero_().requires_grad_(like.requires_grad)
        name = str(each.target)
        return record.constants[name] if name in record.constants else copied(model.get_submodule(name)).to(device)

    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    function: Any = node.target
    if node.op == "call_module":
        function = copied(model.get_submodule(str(node.target))).to(device)
    times = []
    for _ in range(1 + REPETITIONS):
        given = fx.node.map_aggregate(args, lambda each: each.view_as(each) if isinstance(each, torch.Tensor) else each)
        if node.meta.get("overwrites"):  # a parameter cannot be changed in place
            given = fx.node.map_aggregate(args, lambda e: e.clone() if isinstance(e, torch.Tensor) else e)
        started = _now(device)
        with torch.autocast(device.type, autocast) if autocast else nullcontext():
            outputs = function(*given, **kwargs)
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        if graded := [leaf for leaf in leaves if leaf.requires_grad]:
            torch.autograd.backward(graded, [torch.ones_like(leaf) for leaf in graded])
        times.append(_now(device) - started)
    return min(times[1:])


def _now(device: torch.device) -> float:
    """The time in seconds, after the device has finished its queued work."""
    synchronise(device)
    return time.perf_counter()
