"""Sets of intervals on the line of time: their union, what two have in common, and their length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals that cover the same, apart from each other and in order."""
    merged: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """How much they cover."""
    return sum(end - begin for begin, end in union(intervals))


def without(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """What the first ones cover and the others do not."""
    left: list[Interval] = []
    removed = union(others)
    for begin, end in union(intervals):
        for start, stop in removed:
            if stop <= begin or start >= end:
                continue
            if start > begin:
                left.append((begin, start))
            begin = max(begin, stop)
        if begin < end:
            left.append((begin, end))
    return left


def common(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """What both cover."""
    return without(intervals, without(intervals, others))
