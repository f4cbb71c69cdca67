"""How speeds are averaged and compared: geometric means, intervals of ratios, and the practical margin.

Speeds vary by factors, not by amounts, so that everything is computed with their logarithms. A difference counts only
if it is larger than the spread between jobs (the interval) and large enough to matter (the margin).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

CONFIDENCE = 0.95
POWER = 0.8  # the chance that the number of repeats named by `repeats_to_tell` is enough
MOST_REPEATS = 30  # beyond so many, more repeats are not advised
LEAST_REPEATS = 3  # advised where a single repeat tells nothing about the spread
FLOOR = 0.002  # of a speed: no machine repeats itself better, however alike a few repeats are

MOST_LOG = 300.0  # of an interval's half: beyond it, a number overflows

Rounds = Mapping[int, float]  # positive values by repeat: those of one repeat are measured one after the other
Standing = Literal["fastest", "tie", "slower", "unclear"]
T = TypeVar("T")


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

    def columns(self, name: str) -> dict[str, float | None]:
        """As the columns of a table."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def geometric_mean(values: Sequence[float]) -> Estimate:
    """The geometric mean of positive values with the Student-t interval of their logarithms.

    A single value has no interval. Raises ValueError without values, and for a value that is not positive and finite.
    """
    logs = _logs(values)
    return Estimate(float(values[0])) if logs.size == 1 else _estimate(logs, FLOOR, 1)


def ratio(values: Rounds, others: Rounds, among: int = 1) -> Estimate:
    """The ratio of two geometric means, paired by round: what a round does to both is in no difference.

    Over the rounds that both have. There is an interval only where these are two or more. Of `among` ratios that are
    told together, all intervals cover theirs in 95 % of cases (Bonferroni). Raises ValueError as `geometric_mean` does.
    """
    return _estimate(_apart(values, others), math.sqrt(2) * FLOOR, among)


def ratio_of_days(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """The ratio of two geometric means that share no rounds, with Welch's interval. Raises ValueError likewise."""
    a, b = _logs(values), _logs(others)
    difference = math.exp(float(a.mean() - b.mean()))
    if min(a.size, b.size) == 1:
        return Estimate(difference)
    shares = [max(float(each.std(ddof=1)), FLOOR) ** 2 / each.size for each in (a, b)]
    freedom = sum(shares) ** 2 / (shares[0] ** 2 / (a.size - 1) + shares[1] ** 2 / (b.size - 1))
    return _around(difference, math.sqrt(sum(shares)), freedom, 1)


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
    least, most = band(margin)
    if relative.high < least:
        return "slower"
    if least <= relative.low and relative.high <= most:
        return "tie"
    return "unclear"


def first_by_pairs(
    in_order: Sequence[T], speed_up: Callable[[T, T], float], allowed: Callable[[T], bool] = lambda _: True
) -> T:
    """The fastest of those that are `allowed`, at least one, by the ratios of pairs that `speed_up` gives.

    `in_order` are those with the highest mean first. Where pairs and means agree, it is the first one allowed. Where
    one is faster than each of the others, it is that one.
    """
    leader = next(each for each in in_order if allowed(each))
    for each in in_order:
        if each is not leader and speed_up(each, leader) > 1 and allowed(each):
            leader = each
    return leader


def band(margin: float) -> tuple[float, float]:
    """The ratios between which two speeds are a tie."""
    return 1 - margin, 1 / (1 - margin)


def repeats_to_tell(values: Rounds, others: Rounds, edges: Sequence[float], among: int = 1) -> int | None:
    """How many repeats of each of two settings would tell on which side of all `edges` the ratio of their speeds is.

    The spread and the ratio are taken as they were measured. With the number returned, the ratio's interval leaves
    out the edges in `POWER` of all cases. None where more than `MOST_REPEATS` would be needed. `LEAST_REPEATS` where
    there is one round, so that the spread is not known. Raises ValueError as `ratio` does.
    """
    logs = _apart(values, others)
    if logs.size == 1:
        return LEAST_REPEATS
    spread = max(float(logs.std(ddof=1)), math.sqrt(2) * FLOOR)
    apart = [float(logs.mean()) - math.log(edge) for edge in edges]
    # Between two edges, the interval may reach across either of them.
    power = (1 + POWER) / 2 if min(apart) < 0 < max(apart) else POWER
    for repeats in range(logs.size + 1, MOST_REPEATS + 1):
        needed = _quantile(repeats - 1, among) + t_quantile(power, repeats - 1)
        if needed * spread / math.sqrt(repeats) < min(map(abs, apart)):
            return repeats
    return None


def oddest(values: Sequence[float]) -> tuple[int, float] | None:
    """The place of the repeat farthest from the geometric mean of the others, and its ratio to that.

    None where there are fewer than two. It is shown, never dropped. Raises ValueError as `geometric_mean` does.
    """
    logs = _logs(values)
    if logs.size < 2:
        return None
    apart = (logs - logs.mean()) * logs.size / (logs.size - 1)  # from the mean of all others
    place = int(np.argmax(np.abs(apart)))
    return place, math.exp(float(apart[place]))


def _logs(values: Sequence[float]) -> np.ndarray:
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError(f"speeds must be positive numbers, at least one; these are {list(values)}")
    return np.log(np.asarray(values, dtype=float))


def _apart(values: Rounds, others: Rounds) -> np.ndarray:
    """The differences of the logarithms, of the rounds that both have."""
    if rounds := sorted(values.keys() & others.keys()):
        return _logs([values[each] for each in rounds]) - _logs([others[each] for each in rounds])
    return np.array([_logs(list(values.values())).mean() - _logs(list(others.values())).mean()])


def _estimate(logs: np.ndarray, floor: float, among: int) -> Estimate:
    mean = math.exp(float(logs.mean()))
    if logs.size == 1:
        return Estimate(mean)
    return _around(mean, max(float(logs.std(ddof=1)), floor) / math.sqrt(logs.size), logs.size - 1, among)


def _around(value: float, error: float, freedom: float, among: int) -> Estimate:
    factor = math.exp(min(MOST_LOG, _quantile(freedom, among) * error))
    return Estimate(value, value / factor, value * factor)


def _quantile(freedom: float, among: int) -> float:
    return t_quantile(1 - (1 - CONFIDENCE) / 2 / among, freedom)
