"""Where an optimiser of the task's own clips gradients: seen by its steps of gradients that are scaled up."""

from itertools import pairwise

import torch
from torch import nn

from relay.equivalence.figures import distance, norm
from relay.task.bound import BoundTask

SCALES = [2.0**exponent for exponent in range(-32, 33, 4)]  # powers of two scale without rounding
UNLIKE = 1e-6  # relative: a clamp against a division by 0 changes less


def clipped_at(task: BoundTask, model: nn.Module) -> float | None:
    """About the norm of gradients at which a step begins to clip them; None where it clips none, or all of them.

    The model has gradients. What a step makes of them in place grows with them, up to that norm.
    """
    gradients = [(each, each.grad.clone()) for each in model.parameters() if each.grad is not None]
    made = [(scale, _after_step(task, model, gradients, scale)) for scale in SCALES]
    unlike = [
        scale
        for (_, one), (scale, other) in pairwise(made)
        if not distance([*zip(one, other, strict=True)]) <= UNLIKE * norm(one)
    ]
    whole = norm(gradient for _, gradient in gradients)
    return unlike[0] / 4 * whole if unlike and unlike[0] != SCALES[1] else None


def _after_step(
    task: BoundTask, model: nn.Module, gradients: list[tuple[nn.Parameter, torch.Tensor]], scale: float
) -> list[torch.Tensor]:
    """What a first step leaves of gradients that are scaled, divided by the scale."""
    for parameter, gradient in gradients:
        parameter.grad = gradient * scale
    task.optimizer(model.parameters()).step()
    return [parameter.grad / scale for parameter, _ in gradients if parameter.grad is not None]
