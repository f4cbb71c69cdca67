"""The limits of a probe, which searches for the largest batch that fits into memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a probe may try: multiples of `unit` samples per device, from `first` up to `most`, for at most `minutes`.

    A batch fits where it leaves 1 - `memory_fraction` of the memory free.
    """

    unit: int
    first: int
    most: int
    minutes: float
    memory_fraction: float
    node_memory_mb: int | None = None
