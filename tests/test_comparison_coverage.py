"""The comparison's statistics by simulation: what they promise is reached, with few repeats and with bad noise.

Every test draws from a generator of its own, so that it always sees the same numbers. `benchmarks/statistics.py` does
the same with more draws, and prints the figures.
"""

from __future__ import annotations

import pytest

from simulated_speeds import NOISES, called, covered

DRAWS = 1500


@pytest.mark.parametrize("noise", NOISES)
def test_the_stated_coverage_is_reached(noise: str) -> None:
    """95 % of the intervals cover the true ratio. 1.7 points are three standard errors of so many draws."""
    assert covered(noise, 3, draws=DRAWS) >= 0.95 - 0.017


@pytest.mark.parametrize("noise", NOISES)
def test_ties_are_called_ties_and_a_known_winner_is_found(noise: str) -> None:
    """The noise stands out by five spreads: a tie can be told within a margin of 3 % where the spread is 0.3 %."""
    tie = called(noise, 5, true_ratio=1.0, draws=400, spread=0.003)
    assert (tie["slower"], tie["tie"] >= 0.9) == (0, True)
    winner = called(noise, 5, true_ratio=0.9, draws=400)
    assert (winner["tie"], winner["slower"] >= 0.95) == (0, True)


@pytest.mark.parametrize("noise", NOISES)
def test_a_tie_is_never_called_a_difference_however_large_the_noise(noise: str) -> None:
    """Nor a difference a tie: in at most one of 40 cases, as an interval of 95 % has it on either side."""
    assert called(noise, 3, true_ratio=1.0, draws=400, spread=0.05)["slower"] <= 0.025
    assert called(noise, 3, true_ratio=0.9, draws=400, spread=0.05)["tie"] <= 0.025


@pytest.mark.parametrize("true_ratio", [0.9, 1.0])
def test_so_many_repeats_as_are_advised_do_tell(true_ratio: float) -> None:
    """In four of five cases (POWER); a tenth less, for the draws and the rounding of degrees of freedom."""
    found = called("normal", "advised", true_ratio=true_ratio, draws=300, spread=0.02)
    assert found["unclear"] <= 0.3
