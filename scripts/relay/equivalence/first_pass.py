"""What the first samples of a task show before its trials: where it computes, in what, and at which norm it clips."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from relay.equivalence.figures import distance, norm
from relay.process.generators import drawn_from
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.calls import on_device
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
        model = on_device(batches.model_of_type(task.built(), torch.float64), device)
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
    parameters = [each for each in model.parameters() if each.grad is not None]
    gradients, before = [each.grad for each in parameters if each.grad is not None], list[torch.Tensor]()
    for scale in SCALES:  # with one scale's gradients, and those of the one before, in memory
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient * scale
        task.optimizer(model.parameters()).step()
        left = [each.grad.div_(scale) for each in parameters if each.grad is not None]
        if before and not distance([*zip(before, left, strict=True)]) <= UNLIKE * norm(before):
            return None if scale == SCALES[1] else scale / 4 * whole
        before = left
    return None
