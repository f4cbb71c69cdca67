"""The comparison's statistics, against scipy's own tests and against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from relay.comparison.statistics import Estimate, geometric_mean, ratio, standing


def test_geometric_mean_of_two_repeats_by_hand() -> None:
    # Logarithms 0 and 2: mean 1, standard error 1, and t of 1 degree of freedom at 97.5 % is 12.7062.
    estimate = geometric_mean([1.0, math.e**2])
    assert estimate.value == pytest.approx(math.e)
    assert math.log(estimate.low) == pytest.approx(1 - 12.7062, abs=1e-4)
    assert math.log(estimate.high) == pytest.approx(1 + 12.7062, abs=1e-4)


def test_geometric_mean_agrees_with_scipy() -> None:
    speeds = [20100.0, 20500.0, 19800.0, 20900.0, 20444.0]
    estimate = geometric_mean(speeds)
    interval = stats.ttest_1samp(np.log(speeds), 0).confidence_interval(0.95)
    assert estimate.value == pytest.approx(stats.gmean(speeds))
    assert (estimate.low, estimate.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_ratio_agrees_with_scipys_welch_test() -> None:
    a, b = [100.0, 104.0, 99.0, 103.0], [131.0, 120.0, 125.0]
    estimate = ratio(a, b)
    interval = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval(0.95)
    assert estimate.value == pytest.approx(stats.gmean(a) / stats.gmean(b))
    assert (estimate.low, estimate.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_one_repeat_has_no_interval_and_equal_repeats_a_narrow_one() -> None:
    assert geometric_mean([5.0]) == Estimate(5.0, None, None)
    assert ratio([4.0], [8.0, 8.1]).low is None
    same = ratio([4.0, 4.0], [8.0, 8.0])
    assert (same.value, same.low, same.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("speeds", [[], [0.0, 1.0], [-1.0], [float("nan"), 1.0], [float("inf")]])
def test_speeds_that_are_none_are_refused(speeds: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        geometric_mean(speeds)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.98, 1.01, "tie"),
        (0.96, 1.01, "unclear"),  # slower by more than the margin, or not
        (0.98, 1.04, "unclear"),  # the band ends at 1 / 0.97 = 1.0309
        (0.96, 0.98, "unclear"),  # slower for sure, but perhaps by less than the margin
        (0.90, 0.969, "slower"),
        (0.90, 0.971, "unclear"),
        (None, None, "unclear"),
    ],
)
def test_standing_at_a_margin_of_three_percent(low: float | None, high: float | None, expected: str) -> None:
    assert standing(Estimate(0.97, low, high), 0.03) == expected
