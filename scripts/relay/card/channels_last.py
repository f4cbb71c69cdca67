"""A task's model with channels last, looked at: whether it can be computed so, with the same loss."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from relay.card.draft import Draft
from relay.card.model import Computable
from relay.process.generators import drawn_from
from relay.task import batches
from relay.task.calls import on_device
from relay.task.modes import FunctionMode

TOLERANCE = 1e-3  # relative, of a loss in float32: another order in memory is another order of sums
# oneDNN writes beyond its memory in the backward pass of a strided convolution of single pixels with fewer channels
# than fit into one of its blocks, where they lie last: https://github.com/uxlfoundation/oneDNN/issues/6035. The process
# crashes, or computes wrong gradients.
LEAST_CHANNELS = 16


def see(task: Computable, draft: Draft) -> None:
    """Look at one step in both orders of memory. A `view` of pictures fails in the other one."""
    if not any(map(batches.pictures, batches.leaves(task.batch))) or draft.card["outside"]:
        return
    try:
        one, other = (_loss(task, channels_last=last) for last in (False, True))
    except Exception:  # of whatever the model calls
        draft.card["channels_last"] = False
        return
    if abs(other - one) <= TOLERANCE * max(abs(one), 1.0):  # not where dropout draws in the order in memory
        draft.card["channels_last"] = True


def _loss(task: Computable, *, channels_last: bool) -> float:
    """The loss of a step with its backward pass."""
    bound = replace(task.bound, channels_last=channels_last)
    batch = batches.with_channels_last(task.batch) if channels_last else task.batch
    with drawn_from(0), _Crashing():
        model = on_device(bound.model(), batches.leaves(batch)[0].device)
        loss = bound.loss(bound.outputs(model, batch), batch)
        loss.backward()
    return float(loss.detach())


class _Crashing(FunctionMode):
    """Raises RuntimeError for a convolution that could crash, in either order of memory."""

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func is torch.conv2d:
            names = ("input", "weight", "bias", "stride")
            given = dict(zip(names, args, strict=False)) | dict(kwargs)
            weight, stride = given["weight"], given.get("stride", 1)
            strided = (stride if isinstance(stride, int) else max(stride)) > 1
            if strided and tuple(weight.shape[2:]) == (1, 1) and weight.shape[1] < LEAST_CHANNELS:
                raise RuntimeError("a strided convolution of single pixels with few channels")
        return func(*args, **kwargs)
