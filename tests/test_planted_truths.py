"""The answer is never certain and wrong where the truth is planted; `benchmarks/planted_truths.py` draws more often."""

import pytest

from planted_truths import TRUTHS, Truth, changed, found


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name)
def test_no_planted_truth_is_answered_wrongly_with_certainty(truth: Truth) -> None:
    said = found(truth, 2)
    assert (said.wrong, said.unsaid) == (0, 0), said


def test_rounds_that_differ_alike_for_both_hide_no_difference() -> None:
    (truth,) = [each for each in TRUTHS if each.name.startswith("7 % slower, rounds")]
    assert found(truth, 40).certainties["winner"] > 0.5


def test_a_day_is_called_no_change_and_a_change_of_half_is_one() -> None:
    assert {*changed(0.02, 15)} <= {"the same", "unclear"}
    assert {*changed(0.02, 5, days=3, ratio=0.5)} == {"slower"}
