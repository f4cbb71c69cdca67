"""Differences between tensors, as one figure; they may lie on different devices."""

from __future__ import annotations

import torch


def difference(mine: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest absolute difference; NaN where either has one, infinite where the shapes differ."""
    if mine.shape != reference.shape:
        return float("inf")
    return float(_apart(mine, reference).abs().max())


def largest(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The largest difference within any pair of tensors."""
    return float(torch.tensor([difference(mine, reference) for mine, reference in pairs]).max())  # keeps a NaN


def distance(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The L2 norm of all differences together; infinite where shapes differ."""
    if any(mine.shape != reference.shape for mine, reference in pairs):
        return float("inf")
    return float(torch.stack([_apart(mine, reference).norm() for mine, reference in pairs]).norm())


def _apart(mine: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return mine.double() - reference.to(mine.device).double()
