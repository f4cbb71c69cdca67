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

CONFIDENCE = 0.95
POWER = 0.8  # the chance that the number of repeats named by `repeats_to_tell` is enough
MOST_REPEATS = 30  # beyond so many, more repeats are not advised
LEAST_REPEATS = 3  # advised where a single repeat tells nothing about the spread

Standing = Literal["fastest", "tie", "slower", "unclear"]


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t distribution with so many degrees of freedom."""
    from scipy.special import stdtrit  # here, because every job plans, and few need it

    return float(stdtrit(freedom, probability))


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
    return _from_logs(float(logs.mean()), float(logs.std(ddof=1) / math.sqrt(logs.size)), logs.size - 1)


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
    """The standing of a setting whose speed, divided by the fastest one's, is `relative` (about 1 at most).

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


def band(margin: float) -> tuple[float, float]:
    """The ratios between which two speeds are a tie."""
    return 1 - margin, 1 / (1 - margin)


def repeats_to_tell(values: Sequence[float], others: Sequence[float], edges: Sequence[float]) -> int | None:
    """How many repeats of each of two settings would tell on which side of all `edges` the ratio of their speeds is.

    The spreads and the ratio are taken as they were measured. With the number returned, the ratio's interval leaves
    out the edges in `POWER` of all cases. None where more than `MOST_REPEATS` would be needed. `LEAST_REPEATS` where
    one of the two has a single repeat, so that its spread is not known. Raises ValueError as `geometric_mean` does.
    """
    a, b = _logs(values), _logs(others)
    if min(a.size, b.size) == 1:
        return LEAST_REPEATS
    shares = float(a.var(ddof=1)), float(b.var(ddof=1))
    apart = [float(a.mean() - b.mean()) - math.log(edge) for edge in edges]
    distance = min(map(abs, apart))
    # Between two edges, the interval may reach across either of them.
    power = (1 + POWER) / 2 if min(apart) < 0 < max(apart) else POWER
    for repeats in range(max(a.size, b.size) + 1, MOST_REPEATS + 1):
        squares = sum(share**2 for share in shares)
        freedom = (repeats - 1) * sum(shares) ** 2 / squares if squares else 1.0
        needed = t_quantile((1 + CONFIDENCE) / 2, freedom) + t_quantile(power, freedom)
        if needed * math.sqrt(sum(shares) / repeats) < distance:
            return repeats
    return None


@dataclass(frozen=True)
class Odd:
    """The repeat that differs most from the others of its setting: its place, and its speed over their mean."""

    place: int
    ratio: float


def oddest(values: Sequence[float]) -> Odd | None:
    """The repeat farthest from the geometric mean of the other repeats; None where there are fewer than two.

    It is shown, never dropped. Raises ValueError as `geometric_mean` does.
    """
    logs = _logs(values)
    if logs.size < 2:
        return None
    apart = (logs - logs.mean()) * logs.size / (logs.size - 1)  # from the mean of all others
    place = int(np.argmax(np.abs(apart)))
    return Odd(place, math.exp(float(apart[place])))


def _logs(values: Sequence[float]) -> np.ndarray:
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError(f"speeds must be positive numbers, at least one; these are {list(values)}")
    return np.log(np.asarray(values, dtype=float))


def _from_logs(mean: float, error: float, freedom: float) -> Estimate:
    half = t_quantile((1 + CONFIDENCE) / 2, freedom) * error
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
