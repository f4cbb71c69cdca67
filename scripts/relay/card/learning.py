"""A task's loss and metrics, looked at: what one step of the training computes."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relay.card.data import close
from relay.card.draft import Draft
from relay.card.model import Computable, computed
from relay.card.watch import LossCalls
from relay.process.generators import drawn_from
from relay.spec.labels import several
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.calls import copied, in_mode
from relay.task.draws import Draws
from relay.task.in_float64 import InFloat64
from relay.task.load import in_one_line
from relay.task.mean_loss import LIMITS, Dependent, check_gradients, mean_over_samples
from relay.task.modes import outside
from relay.task.places import calling, mistake, of_machine, place
from relay.task.split import Chosen
from relay.task.still import FrozenNorms, still
from relay.task.user import Task

MEAN = 1e-4  # how far a metric may be from the mean of its parts, in float32
PADDED = 1e-6  # how far a loss may be from that of parts with other padding: sums of other lengths round otherwise


def see(task: Computable, draft: Draft) -> None:
    """Look at a training step and an evaluation of a task. Raises UserError for what cannot be trained."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using a target size")  # torch's word of broadcasting: the look has its own
        _see(task, draft)


def _see(task: Computable, draft: Draft) -> None:
    bound, batch, kind = task.bound, task.batch, type(task.bound.own)
    outputs = computed(task, draft)
    with calling(kind, "loss"), LossCalls() as calls, drawn_from(0):
        loss = bound.loss(outputs, batch)
    draft.card["differentiates"] |= calls.differentiates
    draft.card["cross_entropy"] = calls.entropy_is_all(loss, outputs)
    if not math.isfinite(float(loss.detach())):
        why = bound.split("train").not_finite(batch, task.samples)
        problem = f"the loss of the first batch is {float(loss.detach()):g}{why or '; allowed: a finite number'}"
        raise mistake(kind, "loss", problem)
    _gradients(task, loss, draft)
    draft.metrics = _evaluated(task, draft)
    # What draws outside torch gives another loss each time, whatever it is a mean of.
    draft.card["mean_difference"] = None if draft.card["outside"] else _mean_difference(task, draft)
    if draft.card["mean_difference"] and calls.broadcast:
        n = calls.broadcast
        problem = f"loss() joins tensors of the shapes [{n}, 1] and [{n}], which torch broadcasts to [{n}, {n}]"
        draft.warn("loss", f"{problem}; give them one shape, such as by squeeze(1)")


def _gradients(task: Computable, loss: torch.Tensor, draft: Draft) -> None:
    """Which parameters get no gradient. Raises UserError where none gets one."""
    kind = type(task.bound.own)
    trained = {name: each for name, each in task.model.named_parameters() if each.requires_grad}
    if loss.requires_grad:
        with calling(kind, "loss"):
            loss.backward()
    if not trained:
        raise mistake(kind, "model", "all parameters have requires_grad=False; allowed: some that are trained")
    gradients = {name: each.grad for name, each in trained.items() if each.grad is not None}
    left = [name for name in trained if name not in gradients]
    if len(left) == len(trained):
        raise mistake(
            kind,
            "loss",
            "no parameter of the model gets a gradient from the loss; allowed: a loss that is computed from the "
            "model's outputs, without detach(), item() or no_grad()",
        )
    if sparse := [name for name, each in gradients.items() if each.is_sparse]:
        raise mistake(
            kind,
            "model",
            f"the gradient of {several(sparse)} is sparse, and strategies sum and divide dense ones; allowed: "
            "nn.Embedding without sparse=True, and an optimiser of dense gradients, such as Adam for SparseAdam",
        )
    if odd := [name for name, each in gradients.items() if not bool(each.isfinite().all())]:
        problem = f"the gradient of {several(odd)} is not finite in the first batch, although the loss is"
        allowed = "finite ones; torch.where and nanmean hide NaN in a loss alone"
        raise mistake(kind, "loss", f"{problem}; allowed: {allowed}")
    draft.card["without_gradient"] = tuple(left)
    draft.card["conditional"] = _conditional(task, trained)
    if left := [name for name in left if name not in draft.card["conditional"]]:
        draft.warn("model", f"{several(left)} got no gradient in the first step; is that meant?")


def _conditional(task: Computable, trained: Iterable[str]) -> tuple[str, ...]:
    """The trained parameters that some samples leave out and others not, or some random numbers, as a layer drop."""
    bound, samples, left = task.bound, batches.count(task.batch), list[set[str]]()
    for size in (1, 2):  # BatchNorm wants two
        model = in_mode(copied(task.model), training=True)
        for first in range(0, samples - size + 1, size):
            part = batches.taken(task.batch, slice(first, first + size))
            model.zero_grad()
            with suppress(Exception), drawn_from(first):  # the model may not take this sample alone
                bound.loss(bound.outputs(model, part), part).backward()
                left.append({name for name, each in model.named_parameters() if each.grad is None})
        if len(left) == samples:  # each sample alone
            break
    return tuple(name for name in trained if len({name in each for each in left}) > 1)


@torch.no_grad()
def _evaluated(task: Computable, draft: Draft) -> tuple[str, ...]:
    """The names of the metrics. Raises UserError where an evaluation fails."""
    bound, batch, kind = task.bound, task.batch, type(task.bound.own)
    with drawn_from(0):
        with calling(kind, "model"):
            outputs = bound.outputs(in_mode(task.model, training=False), batch)
        with calling(kind, "loss"):
            loss = float(bound.loss(outputs, batch))
        with calling(kind, "metrics"):
            metrics = _checked(kind, "metrics", bound.own.metrics(outputs, batch))
        _check_means(task, draft, {"loss": loss, **{name: float(value) for name, value in metrics.items()}})
        with calling(kind, "final_metrics"):
            means = {name: float(value) for name, value in metrics.items()}
            return tuple(_checked(kind, "final_metrics", bound.own.final_metrics(means)))


def _checked(kind: type[Task], method: str, metrics: Any) -> Mapping[str, Any]:
    """Metrics as they are. Raises UserError for what is none."""
    if not isinstance(metrics, Mapping):
        raise mistake(kind, method, f"{method}() returned {type(metrics).__name__}; allowed: a dict of names and means")
    for name, value in metrics.items():
        if problem := _of_metric(name, value):
            raise mistake(kind, method, f"{method}(): {problem}")
    return metrics


def _check_means(task: Computable, draft: Draft, whole: Mapping[str, float]) -> None:
    """Raise UserError for a metric that is no mean, and warn of one over anything else than samples, such as tokens.

    Nothing is said where the loss is no mean over samples either.
    """
    bound, samples = task.bound, batches.count(task.batch)
    means = dict.fromkeys(whole, 0.0)

    @cache
    def values(*which: int) -> Mapping[str, float]:
        batch = batches.taken(task.batch, list(which))
        outputs = bound.outputs(task.model, batch)
        return {**bound.metrics(outputs, batch), "loss": float(bound.loss(outputs, batch))}

    try:
        for part in (range(samples // 3), range(samples // 3, samples)):
            means = {name: means[name] + values(*part)[name] * len(part) / samples for name in whole}
    except Exception:  # a model that takes no other batch
        return
    odd = [name for name in whole if not abs(means[name] - whole[name]) <= MEAN * max(1.0, abs(whole[name]))]
    odd = [name for name in odd if math.isfinite(whole[name])]
    for name in odd if "loss" not in odd else ():
        of_batch = f"of a batch it is {whole[name]:.3g}, the mean of its parts is {means[name]:.3g}"
        problem = f"metrics(): {name} is no mean over samples: {of_batch}; "
        helps = (
            f"means over samples, and a method final_metrics(self, means) that makes {name} of those of the whole set"
        )
        if not _weighted(lambda *which: values(*which)[name], samples):  # noqa: B023  # called at once
            raise mistake(type(bound.own), "metrics", f"{problem}allowed: {helps}")
        other = "a mean over something else, such as tokens, differs if a batch is divided otherwise"
        draft.warn("metrics", f"{problem}{other}; exact are {helps}")


def _weighted(value: Callable[..., float], samples: int) -> bool:
    """Whether the value of some samples is a mean of each one's, with weights of their own: these fit each other."""

    def weight(one: int, other: int) -> float:
        together = value(one, other)
        return (together - value(other)) / (value(one) - together)

    for a, b, c in ((first, first + 1, first + 2) for first in range(0, samples - 2, 2)):
        values = value(a), value(b), value(c)
        if not all(map(math.isfinite, values)):
            return False
        told_apart = min(abs(one - other) for one, other in combinations(values, 2)) > 0.01 * max(map(abs, values))
        if told_apart and not abs(weight(a, b) * weight(b, c) / weight(a, c) - 1) < MEAN:
            return False
    return True


def _of_metric(name: Any, value: Any) -> str:
    """What is wrong with a metric; '' for nothing."""
    if not isinstance(name, str):
        return f"{name!r} is no name; allowed: a text"
    if name == "loss":
        return "'loss' is measured in any case; allowed: other names"
    if isinstance(value, torch.Tensor):
        got = f"a tensor of shape {list(value.shape)}" if value.numel() != 1 else ""
    else:
        got = "" if isinstance(value, int | float | np.number) else type(value).__name__
    return f"{name} is {got}; allowed: a single number, the mean over the samples" if got else ""


def _mean_difference(task: Computable, draft: Draft) -> float | None:
    """How far the loss is from a mean over samples; 0 within the limit of rounding, None where that cannot be said.

    In float64; in float32 for a model that computes in no other type. The buffers that a forward pass changes come onto
    the card, and that the loss is another one when it is computed again.
    """
    why = Exception()
    for precision, dtype in (("fp64", torch.float64), ("fp32", torch.float32)):
        bound = task.bound
        exact = BoundTask(bound.spec, bound.seed, precision, 1, 1, folder=bound.folder)
        exact._accepted, exact.__dict__["own"] = bound._accepted, bound.own  # which may keep something of its model
        model, batch = in_mode(batches.model_of_type(task.again, dtype), training=True), batches.cast(task.batch, dtype)
        try:
            return _difference(task, exact, model, batch, draft)
        except Dependent as error:
            draft.card.setdefault("dependent", str(error))  # what the forward pass changes is said already
            return None
        except Exception as error:  # whatever a model or a loss raises for few samples, or for another type
            if of_machine(error):
                raise
            why = error
    reason = in_one_line(why, Path(inspect.getfile(draft.kind)))
    draft.warn("loss", f"whether the loss is a mean over samples cannot be seen: {reason}")
    return None


def _difference(task: Computable, bound: BoundTask, model: nn.Module, batch: Batch, draft: Draft) -> float:
    in_float64 = InFloat64() if bound.dtype == torch.float64 else nullcontext()
    with in_float64:
        stilled = still(model, lambda whole: bound.outputs(whole, batch))
    draft.card["buffers"] = stilled.buffers
    if stilled.unrepeatable:
        raise Dependent(stilled.unrepeatable)
    with ExitStack() as stack:
        stack.enter_context(in_float64)
        stack.enter_context(drawn_from(0))
        stack.enter_context((draws := Draws()).fixed())
        stack.enter_context(FrozenNorms())
        difference, where = mean_over_samples(bound, model, batch), f"({place(type(bound.own), 'model')})"
        is_mean = difference < LIMITS[bound.dtype]
        if is_mean:
            check_gradients(bound, model, batch)
        if not is_mean and _mixes(bound, model, batch):
            draft.card.setdefault("dependent", f"a sample's outputs depend on the other samples of its batch {where}")
        padded = not draft.card["equal_shapes"] and not draws.drawn  # such random numbers depend on lengths
        if is_mean and (padded or draft.mixes) and mean_over_samples(bound, model, batch, _read(task, bound)) > PADDED:
            why = f"a sample's loss depends on how far its batch is padded {where}: mask what is padded"
            draft.card.setdefault("dependent", draft.mixes or why)
    return 0.0 if is_mean else float(f"{difference:.3g}")


def _read(task: Computable, bound: BoundTask) -> Callable[[int, int], Batch]:
    """From the first and the last sample of a part of the batch to that part as a process reads it by itself."""
    split = task.bound.split("train")
    positions, device = task.samples % len(split), batches.leaves(task.batch)[0].device

    def read(start: int, end: int) -> Batch:
        with outside():
            part = split.ready(split.read(Chosen(positions[start:end])), torch.device("cpu"))
            return batches.cast(batches.moved(part, device), bound.dtype)

    return read


@torch.enable_grad()
def _mixes(bound: BoundTask, model: nn.Module, batch: Batch) -> bool:
    """Whether the model gives other outputs for a batch's first half than for the whole batch."""
    samples, half = batches.count(batch), max(1, batches.count(batch) // 2)
    parts = (batch, batches.taken(batch, slice(half)))
    whole, alone = (batches.of_samples(bound.outputs(model, part)) for part in parts)
    pairs = ((one[: len(one) * half // samples], other) for one, other in zip(whole, alone, strict=True) if one.dim())
    return any(one.shape == other.shape and not close(one, other) for one, other in pairs)
