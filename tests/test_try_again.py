"""Each case in which a job has not done its work, and whether it is tried again."""

from __future__ import annotations

from typing import Any

import pytest

from relay.run_folder.try_again import Case, Tried, given_up

AGAIN = None
CASES: list[tuple[Case, dict[str, Any], str | None]] = [
    (Case.FAULT, {"retries": 9}, ""),
    (Case.HANG, {}, ""),
    (Case.HANG, {"came_further": True}, AGAIN),
    (Case.FOR_MEMORY, {}, AGAIN),
    (Case.FOR_MEMORY, {"memory_spent": "no node has more"}, "no node has more"),
    (Case.HARDWARE, {}, AGAIN),
    (Case.HARDWARE, {"node_without_other": "c1"}, "no other node than c1 can take it"),
    (Case.UNKNOWN, {"number": 2, "retries": 2}, AGAIN),
    (Case.UNKNOWN, {"number": 3, "retries": 2}, ""),
    (Case.DEADLINE, {"number": 99, "retries": 2, "fruitless": 0}, AGAIN),
    (Case.UNKNOWN, {"fruitless": 1, "step": 8}, AGAIN),
    (Case.UNKNOWN, {"fruitless": 2, "step": 8}, "2 attempts in a row came no further than step 8"),
    (Case.UNKNOWN, {"fruitless": 9, "step": 8, "held": True}, AGAIN),
    (Case.UNKNOWN, {"fruitless": 10, "step": 8, "held": True}, "10 attempts in a row came no further than step 8"),
]


@pytest.mark.parametrize(("case", "tried", "why"), CASES)
def test_a_job_is_tried_again_as_the_table_says(case: Case, tried: dict[str, Any], why: str | None) -> None:
    assert given_up(case, Tried(**tried)) == why
