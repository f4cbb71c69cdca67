"""How far BatchNorm's statistics of a run's replicas are from those of one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from relay.equivalence.figures import distance, share
from relay.equivalence.plain import Statistics, floating


def unlike(one: Statistics, other: Statistics) -> bool:
    """Whether any buffer differs."""
    return any(not torch.equal(one[name], other[name]) for name in one)


def difference(recorded: Statistics, candidates: Sequence[Statistics], before: Statistics) -> float:
    """How far a replica's statistics are from the nearest candidate, relative to how far that has moved; L2 norms."""
    figures = []
    for candidate in candidates:
        off, moved = (distance([(one[n], candidate[n]) for n in floating(candidate)]) for one in (recorded, before))
        figures.append(share(off, moved))
    return min(figures)
