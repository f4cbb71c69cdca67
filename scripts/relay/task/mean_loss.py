"""Whether a task's loss is a mean over samples: what every strategy that divides a batch relies on."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from relay.base.errors import UserError
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.places import of_machine

# How far the loss of a batch may be from the weighted losses of its parts, relative to it where it is greater than 1.
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}
# Where other orders of the samples round the loss otherwise, it may be so many times as far, up to so many limits:
# beyond them the order itself counts, as in a loss over time.
ROUNDING_MARGIN, ORDERS = 10, 4
MOST_LIMITS = {torch.float64: 1_000, torch.float32: 10}
SCALE = 2.0**30  # of a loss; a power of two scales without rounding
CHANGING = (
    "the loss of one batch differs when it is computed again: the forward pass or the loss changes parameters, "
    "or a state that is no buffer and that no checkpoint holds, such as a counter"
)
CLIPPING = (
    "a loss that is scaled has other gradients, beside the scale: a hook, a backward pass of the task's own, or 16-bit "
    "numbers in the model clip or round them, and the parts of a divided batch have larger ones; allowed: "
    "clip_grad_norm, or an optimiser that clips in its step"
)
STANDING = "all gradients of the first batch are 0, or not finite: it trains nothing, so that nothing can be compared"


class NotFinite(UserError):
    """The loss of a whole batch is no finite number: whether it is a mean cannot be said."""


class Dependent(UserError):
    """A batch's loss, or its gradients, depend on something else than its samples; in a sentence."""


@torch.enable_grad()  # without them, some models and losses fail, or compute another one than in training
def mean_over_samples(
    task: BoundTask, model: nn.Module, batch: Batch, read: Callable[[int, int], Batch] | None = None
) -> float:
    """How far the loss of a batch is from the mean of its parts' losses, weighted by their samples; 0 for a mean.

    In two and in three uneven parts, which `read` gives by their first and last sample; None: cut from the batch.
    The model must treat each sample by itself: BatchNorm frozen, draws fixed.
    Where the difference is beyond `LIMITS`, the loss is a sum, or compares the samples of a batch with each other. What
    rounding explains is no difference. It is infinite where a part has no finite loss and the batch has one.
    Raises NotFinite where the batch has none, and Dependent where something else than the batch decides on its loss,
    such as a counter.
    """

    def loss_of(part: Batch) -> float:
        return float(task.loss(task.outputs(model, part), part).detach())

    read = read or (lambda start, end: batches.taken(batch, slice(start, end)))
    samples, whole = batches.count(batch), loss_of(batch)
    if not math.isfinite(whole):
        raise NotFinite(f"the loss of the first batch is {whole:g}")
    if abs(loss_of(batch) - whole) > 1e-12 * max(1.0, abs(whole)):  # the same operations round alike
        raise Dependent(CHANGING)
    differences = [0.0]
    for cuts in ([samples // 3], [samples // 4, samples // 4 + samples // 3]):
        places = [0, *cuts, samples]
        parts = [(start, end) for start, end in pairwise(places) if end > start]
        mean = sum((end - start) / samples * loss_of(read(start, end)) for start, end in parts)
        differences.append(abs(mean - whole) / max(1.0, abs(whole)) if math.isfinite(mean) else math.inf)
    limit, figure = LIMITS[task.dtype], max(differences)
    if not limit < figure <= MOST_LIMITS[task.dtype] * limit:
        return figure
    orders = (torch.randperm(samples, generator=torch.Generator().manual_seed(seed)) for seed in range(ORDERS))
    try:
        rounding = max(abs(loss_of(batches.taken(batch, order)) - whole) for order in orders) / max(1.0, abs(whole))
    except Exception as error:  # the model takes no other order, such as sequences that are sorted by length
        if of_machine(error):
            raise
        return figure
    return 0.0 if figure <= ROUNDING_MARGIN * rounding else figure


@torch.enable_grad()
def check_gradients(task: BoundTask, model: nn.Module, batch: Batch) -> None:
    """Raise Dependent where a batch's gradients are all 0, or do not grow with its loss. They are left in the model."""
    gradients = []
    for scale in (1.0, SCALE):
        model.zero_grad()
        (task.loss(task.outputs(model, batch), batch) * scale).backward()
        gradients.append([each.grad / scale for each in model.parameters() if each.grad is not None])
    most = max((each.abs().max().item() for each in gradients[0] if each.numel()), default=0.0)
    if not 0 < most < math.inf:
        raise Dependent(STANDING)
    pairs = zip(*gradients, strict=True)
    if not all(torch.allclose(one, other, rtol=0, atol=1e-6 * most) for one, other in pairs):
        raise Dependent(CLIPPING)
