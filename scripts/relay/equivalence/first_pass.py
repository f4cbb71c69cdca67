"""What the first samples of a task show before its trials: where it computes, in what, and at which norm it clips."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

from relay.equivalence.figures import distance, norm
from relay.process.generators import drawn_from
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.in_float64 import InFloat64

SCALES = [2.0**exponent for exponent in range(-32, 33, 4)]  # powers of two scale without rounding
UNLIKE = 1e-6  # relative: a clamp against a division by 0 changes less


class FirstPass(NamedTuple):
    """The device that the model was computed on; whether something asks for float32; the norm of the gradients, where a
    step may clip; and about the norm at which the task's own optimiser clips (None: it clips nothing, or everything).
    """

    device: torch.device
    lowers: bool
    norm: float = 0.0
    clipped_at: float | None = None

    @classmethod
    def of(cls, task: BoundTask, first: Batch, device: torch.device) -> FirstPass:
        """Of a task in float64."""
        task, first = task.apart(), batches.moved(first, device)
        model = batches.model_of_type(task.built(), torch.float64).to(device)
        optimizer = task.optimizer(model.parameters())
        of_torch = type(optimizer).__module__.startswith("torch.optim")
        with drawn_from(0), InFloat64() as mode, torch.enable_grad():
            loss = task.loss(task.outputs(model, first), first)
            if task.own.clip_grad_norm is not None or not of_torch:
                loss.backward()
        whole = norm(each.grad for each in model.parameters() if each.grad is not None)
        return cls(device, mode.seen, whole, None if of_torch else _clipped_at(task, model, whole))


def _clipped_at(task: BoundTask, model: nn.Module, whole: float) -> float | None:
    """What a step makes of gradients in place grows with them, up to the norm at which it clips."""
    gradients = [(each, each.grad) for each in model.parameters() if each.grad is not None]
    left = []
    for scale in SCALES:
        for parameter, gradient in gradients:
            parameter.grad = gradient * scale
        task.optimizer(model.parameters()).step()
        left.append([parameter.grad / scale for parameter, _ in gradients if parameter.grad is not None])
    unlike = [
        scale
        for scale, (one, other) in zip(SCALES[1:], pairwise(left), strict=True)
        if not distance([*zip(one, other, strict=True)]) <= UNLIKE * norm(one)
    ]
    return unlike[0] / 4 * whole if unlike and unlike[0] != SCALES[1] else None
