"""The comparison's statistics, against scipy's own tests and against values worked out by hand."""

import math

import numpy as np
import pytest

from relay.comparison.statistics import Estimate, geometric_mean, ratio, ratio_of_days, standing
from simulated_speeds import NOISES, called, covered, rounds


def test_geometric_mean_of_two_repeats_by_hand() -> None:
    # Logarithms 0 and 2: mean 1, standard error 1, and t of 1 degree of freedom at 97.5 % is 12.7062.
    estimate = geometric_mean([1.0, math.e**2])
    assert estimate.value == pytest.approx(math.e)
    assert math.log(estimate.low) == pytest.approx(1 - 12.7062, abs=1e-4)
    assert math.log(estimate.high) == pytest.approx(1 + 12.7062, abs=1e-4)


def test_ratios_agree_with_scipys_paired_test_of_the_common_rounds_and_welch_test_of_days() -> None:
    from scipy import stats  # which takes a second

    a, b = [100.0, 104.0, 99.0, 103.0], [131.0, 120.0, 125.0]
    paired, welch = stats.ttest_rel(np.log(a[:3]), np.log(b)), stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    for estimate, found, confidence, common in (
        (ratio(rounds(a), rounds(b)), paired, 0.95, a[:3]),
        (ratio(rounds(a), rounds(b), 19), paired, 1 - 0.05 / 19, a[:3]),
        (ratio_of_days(a, b), welch, 0.95, a),
    ):
        interval = found.confidence_interval(confidence)
        assert estimate.value == pytest.approx(stats.gmean(common) / stats.gmean(b))
        assert (estimate.low, estimate.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_one_repeat_has_no_interval_and_equal_repeats_that_of_the_floor() -> None:
    assert geometric_mean([5.0]) == Estimate(5.0, None, None)
    assert ratio({0: 4.0}, rounds([8.0, 8.1])).low is None
    same = ratio(rounds([4.0, 4.0, 4.0]), rounds([8.0, 8.0, 8.0]))
    assert (same.value, same.low, same.high) == pytest.approx((0.5, 0.5 / 1.00705, 0.5 * 1.00705), rel=1e-4)
    far_apart = ratio(rounds([1.0, 1e9]), rounds([1e9, 1.0]), 19)
    assert far_apart.high
    assert math.isfinite(far_apart.high)


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


# The comparison's statistics by simulation: what they promise is reached, with few repeats and with bad noise.


DRAWS = 1500


@pytest.mark.parametrize("noise", NOISES)
def test_under_any_noise_what_is_promised_is_reached(noise: str) -> None:
    """95 % of the intervals cover the true ratio. 1.7 points are three standard errors of so many draws.

    The noise stands out by five spreads: a tie can be told within a margin of 3 % where the spread is 0.3 %. However
    large it is, a tie is called a difference, or a difference a tie, in at most one of 40 cases, as an interval of 95 %
    has it on either side.
    """
    assert covered(noise, 3, draws=DRAWS) >= 0.95 - 0.017
    tie = called(noise, 5, true_ratio=1.0, draws=400, spread=0.003)
    assert (tie["slower"], tie["tie"] >= 0.9) == (0, True)
    winner = called(noise, 5, true_ratio=0.9, draws=400)
    assert (winner["tie"], winner["slower"] >= 0.95) == (0, True)
    assert called(noise, 3, true_ratio=1.0, draws=400, spread=0.05)["slower"] <= 0.025
    assert called(noise, 3, true_ratio=0.9, draws=400, spread=0.05)["tie"] <= 0.025


@pytest.mark.parametrize("true_ratio", [0.9, 1.0])
def test_so_many_repeats_as_are_advised_do_tell(true_ratio: float) -> None:
    """In four of five cases (POWER); a tenth less, for the draws and the rounding of degrees of freedom."""
    found = called("normal", "advised", true_ratio=true_ratio, draws=300, spread=0.02)
    assert found["unclear"] <= 0.3
