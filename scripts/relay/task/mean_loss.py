"""Whether a task's loss is a mean over samples: what every strategy that divides a batch relies on."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import torch
from torch import nn

from relay.base.errors import UserError
from relay.task import batches
from relay.task.batches import Batch

# How far the loss of a batch may be from the weighted losses of its parts, relative to it where it is greater than 1.
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}


class NotFinite(UserError):
    """The loss of a whole batch is no finite number: whether it is a mean cannot be said."""


class Changing(UserError):
    """The loss of a batch is another one when it is computed again."""


class Computes(Protocol):
    """A task, as far as this needs it."""

    def outputs(self, module: nn.Module, batch: Batch) -> object:
        """What the model gives."""

    def loss(self, outputs: object, batch: Batch) -> torch.Tensor:
        """The loss, a scalar."""


@torch.no_grad()
def mean_over_samples(
    task: Computes, model: nn.Module, batch: Batch, read: Callable[[int, int], Batch] | None = None
) -> float:
    """How far the loss of a batch is from the mean of its parts' losses, weighted by their samples; 0 for a mean.

    In two and in three uneven parts, which `read` gives by their first and last sample; None: cut from the batch.
    The model must treat each sample by itself: BatchNorm frozen, draws fixed.
    Where the difference is beyond `LIMITS`, the loss is a sum, or compares the samples of a batch with each other.
    It is infinite where a part has no finite loss and the batch has one. Raises NotFinite where the batch has none, and
    Changing where something else than the batch decides on its loss, such as a counter.
    """

    def loss_of(part: Batch) -> float:
        return float(task.loss(task.outputs(model, part), part))

    read = read or (lambda start, end: batches.taken(batch, slice(start, end)))
    samples, whole = batches.count(batch), loss_of(batch)
    if not math.isfinite(whole):
        raise NotFinite(f"the loss of the first batch is {whole:g}")
    if abs(loss_of(batch) - whole) > 1e-12 * max(1.0, abs(whole)):  # the same operations round alike
        raise Changing("the loss of the first batch is another one when it is computed again")
    found = [0.0]
    for cuts in ([samples // 3], [samples // 4, samples // 4 + samples // 3]):
        places = [0, *cuts, samples]
        parts = [(start, end) for start, end in pairwise(places) if end > start]
        mean = sum((end - start) / samples * loss_of(read(start, end)) for start, end in parts)
        found.append(abs(mean - whole) / max(1.0, abs(whole)) if math.isfinite(mean) else math.inf)
    return max(found)
