"""How speeds are averaged and compared: geometric means, intervals of ratios, and the practical margin.

Speeds vary by factors, not by amounts, so that everything is computed with their logarithms. A difference counts only
if it is larger than the spread between jobs (the interval) and large enough to matter (the margin).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

CONFIDENCE = 0.95

Standing = Literal["best", "tie", "slower", "unclear"]


@dataclass(frozen=True)
class Estimate:
    """A positive quantity and its 95 % interval. `low` and `high` are None for a single value, which has no spread."""

    value: float
    low: float | None = None
    high: float | None = None


def geometric_mean(values: Sequence[float]) -> Estimate:
    """The geometric mean of positive values with the Student-t interval of their logarithms.

    A single value has no interval. Raises ValueError without values, and for a value that is not positive and finite.
    """
    logs = _logs(values)
    if logs.size == 1:
        return Estimate(float(values[0]))
    return _from_logs(float(logs.mean()), float(stats.sem(logs)), logs.size - 1)


def ratio(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """The ratio of two geometric means with Welch's interval of the difference of their logarithms.

    Welch's method is used because two settings may vary differently. There is an interval only if both have at least
    two values. Raises ValueError as `geometric_mean` does.
    """
    a, b = _logs(values), _logs(others)
    difference = float(a.mean() - b.mean())
    if min(a.size, b.size) == 1:
        return Estimate(math.exp(difference))
    share_a, share_b = float(a.var(ddof=1)) / a.size, float(b.var(ddof=1)) / b.size
    error = share_a + share_b
    if error == 0:
        return _from_logs(difference, 0.0, 1)
    freedom = error**2 / (share_a**2 / (a.size - 1) + share_b**2 / (b.size - 1))
    return _from_logs(difference, math.sqrt(error), freedom)


def standing(relative: Estimate, margin: float) -> Standing:
    """The standing of a setting whose speed, divided by the best one's, is `relative` (about 1 at most).

    With `margin` m, the band of a tie reaches from 1 − m to 1 / (1 − m). It is the same whichever of the two speeds is
    divided by the other.

    - tie: the interval lies within the band, so that the difference is too small to matter.
    - slower: the interval lies below the band, so that the difference is real and matters.
    - unclear: the interval reaches across an edge of the band, or there is no interval (one repeat).

    A margin of 0 leaves no band. The interval is then below 1 (slower) or not (unclear).
    """
    if relative.low is None or relative.high is None:
        return "unclear"
    least = 1 - margin
    if relative.high < least:
        return "slower"
    if least <= relative.low and relative.high <= 1 / least:
        return "tie"
    return "unclear"


def _logs(values: Sequence[float]) -> np.ndarray:
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError(f"speeds must be positive numbers, at least one; these are {list(values)}")
    return np.log(np.asarray(values, dtype=float))


def _from_logs(mean: float, error: float, freedom: float) -> Estimate:
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
