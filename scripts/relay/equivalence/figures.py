"""Differences between tensors, as one figure; they may lie on different devices."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from relay.base.grouped import grouped
from relay.task import batches

Pair = tuple[torch.Tensor, torch.Tensor]


def difference(mine: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest absolute difference; NaN where either has one, infinite where the shapes differ."""
    return size(_apart(mine, reference)) if mine.shape == reference.shape else math.inf


def scaled(mine: torch.Tensor, reference: torch.Tensor) -> float:
    """The same relative to the reference's largest value, where that is more than 1.

    For losses, outputs and statistics: a loss of 10,000 rounds coarsely. Parameters that large have diverged.
    """
    finite = reference[reference.isfinite()]  # a mask's infinities are no scale
    return difference(mine, reference) / max(1.0, size(finite))


def size(tensor: torch.Tensor) -> float:
    """The largest absolute value; 0 without any."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def most(values: Iterable[float]) -> float:
    """The largest value; NaN where there is one, 0 without any."""
    return float(torch.tensor([0.0, *values], dtype=torch.float64).max())


def largest(pairs: Iterable[Pair]) -> float:
    """The largest difference within any pair of tensors."""
    return most(difference(mine, reference) for mine, reference in pairs)


def by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of an optimizer's state, such as "exp_avg_sq of conv1.weight", by kind; without those of parameters."""
    return grouped((name for name in names if " of " in name), lambda name: name.partition(" of ")[0])


def scales(tensors: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """What a difference is relative to, by name: 1; for an optimizer's state, such as Adam's small
    squares, the largest value of its kind."""
    scale_by_name = dict.fromkeys(tensors, 1.0)
    for names in by_kind(tensors).values():
        scale_by_name |= dict.fromkeys(names, max(size(tensors[name]) for name in names) or 1.0)
    return scale_by_name


def leaves_of(outputs: Any, along: batches.Along, *, whole: bool = False) -> list[torch.Tensor]:
    """What proofs compare of a model's outputs, whatever their structure: tensors, on the CPU, samples first.

    A complex number is two real ones. They are copies: a model may give a parameter, such as a temperature that its
    loss needs, and training would go on changing it. With `whole` also whole numbers, such as classes or a mask, for
    who measures how many of each rounding alone changes: it decides between two that are as likely. A single one counts
    what a slice has, such as its words.
    """
    leaves = (_real(leaf.detach().cpu().clone()) for leaf in batches.of_samples(outputs, along))
    return [leaf for leaf in leaves if leaf.is_floating_point() or (whole and leaf.dim())]


def apart(mine: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """The largest difference between outputs; infinite where one has other tensors, 0 where none has any."""
    return most(each_apart(mine, reference))


def each_apart(mine: list[torch.Tensor], reference: list[torch.Tensor]) -> list[float]:
    """The difference of each output: `scaled`; of whole numbers, such as classes or a mask, the part that differs."""
    if len(mine) != len(reference):
        return [math.inf]
    return [
        scaled(one, other) if other.is_floating_point() else _unlike(one, other)
        for one, other in zip(mine, reference, strict=True)
    ]


def _unlike(mine: torch.Tensor, reference: torch.Tensor) -> float:
    if mine.shape != reference.shape:
        return math.inf
    return float((mine != reference).double().mean()) if mine.numel() else 0.0


def norm(tensors: Iterable[torch.Tensor]) -> float:
    """The L2 norm of all together, in float64."""
    return math.hypot(*(float(tensor.double().norm()) for tensor in tensors))


def distance(pairs: Sequence[Pair]) -> float:
    """The L2 norm of all differences together; infinite where shapes differ."""
    if any(mine.shape != reference.shape for mine, reference in pairs):
        return math.inf
    return norm(_apart(mine, reference) for mine, reference in pairs)


def share(part: float, whole: float) -> float:
    """A part relative to the whole; 0 where both are nothing."""
    return part / whole if whole else part and math.inf


def _apart(mine: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The differences; none between infinities that are the same, as of a mask."""
    one, other = (_real(each).double() for each in (mine, reference.to(mine.device)))
    return (one - other).masked_fill(one == other, 0.0)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
