"""Speeds of two settings whose true ratio is known, with the noise of clusters, and what the statistics say of them."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from relay.comparison.statistics import band, ratio, repeats_to_tell, standing

NOISES = ("normal", "uneven", "heavy tails", "slow nodes", "drift")
MARGIN = 0.03


def _errors(noise: str, repeats: int, spread: float, draw: np.random.Generator) -> np.ndarray:
    """Errors of the logarithm of two settings' speeds, shape [2, repeats].

    uneven: the second setting varies four times as much. heavy tails: Student's t with 3 degrees of freedom.
    slow nodes: every sixth job runs on a node that is slower by five spreads. drift: the cluster gets slower by five
    spreads while the repeats run; they are interleaved, as the workflow does it, so that both settings see it.
    """
    normal = spread * draw.standard_normal((2, repeats))
    if noise == "uneven":
        return normal * np.array([[0.5], [2.0]])
    if noise == "heavy tails":
        return spread * draw.standard_t(3, (2, repeats)) / math.sqrt(3)
    if noise == "slow nodes":
        return normal - 5 * spread * (draw.random((2, repeats)) < 1 / 6)
    if noise == "drift":
        hours = np.arange(repeats) + draw.permuted(np.tile([[0.0], [0.5]], repeats), axis=0)
        return normal - 5 * spread * hours / repeats
    return normal


def speeds(
    noise: str, repeats: int, true_ratio: float, spread: float, draws: int
) -> Iterator[tuple[list[float], list[float]]]:
    """Pairs of measured speeds: of a setting, and of one that is 1 / `true_ratio` as fast."""
    draw = np.random.default_rng([repeats, draws, NOISES.index(noise)])
    for _ in range(draws):
        first, second = np.exp(_errors(noise, repeats, spread, draw))
        yield list(1000 * true_ratio * first), list(1000 * second)


def rounds(values: Iterable[float]) -> dict[int, float]:
    """The repeats' values by repeat."""
    return {repeat: float(value) for repeat, value in enumerate(values)}


def covered(noise: str, repeats: int, *, draws: int, spread: float = 0.01) -> float:
    """The part of the intervals that cover the true ratio."""
    pairs = speeds(noise, repeats, 0.8, spread, draws)
    intervals = [ratio(rounds(one), rounds(other)) for one, other in pairs]
    return sum(found.low <= 0.8 <= found.high for found in intervals if found.low and found.high) / draws


def called(
    noise: str, repeats: int | Literal["advised"], *, true_ratio: float, draws: int, spread: float = 0.01
) -> dict[str, float]:
    """How often each standing is given. `advised`: with as many repeats as three of the same noise advise."""
    count = repeats if repeats != "advised" else advised(noise, true_ratio, spread)
    found = Counter(
        standing(ratio(rounds(one), rounds(other)), MARGIN)
        for one, other in speeds(noise, count, true_ratio, spread, draws)
    )
    return {name: found[name] / draws for name in ("tie", "slower", "unclear")}


def advised(noise: str, true_ratio: float, spread: float) -> int:
    """The repeats that `repeats_to_tell` advises where ratio and spread were measured exactly."""
    exact = np.exp(spread * np.array([-1.0, 0.0, 1.0]))  # three repeats with exactly this standard deviation
    exact = exact ** math.sqrt(2)  # of the differences between two settings
    return repeats_to_tell(rounds(1000 * true_ratio * exact), rounds([1000.0] * 3), band(MARGIN))
