"""What a probe for the largest batch may try."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a probe may try, for so many minutes: multiples of `unit` samples per device, from `first`, up to `most`."""

    unit: int
    first: int
    most: int
    minutes: float
    memory_fraction: float
    node_memory_mb: int | None = None
