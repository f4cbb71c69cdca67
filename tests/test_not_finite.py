"""A training whose loss is no number, or infinite, has failed: it ends with the reason, and is never `best`."""

from __future__ import annotations

import math

import pytest

from chain_runs import Bench
from relay.run_folder import attempts

pytest_plugins = ["chain_runs"]

NAN_FROM_STEP_4 = "if self.steps == 4:\n            next(self.model.parameters()).data.fill_(float('nan'))"


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_run_with_its_step(bench: Bench) -> None:
    chain = bench.chain("results", total_steps=6, **bench.strategy("mine", NAN_FROM_STEP_4))
    ended = chain.forked()
    assert ended.status == 1
    fault = chain.fault()
    assert fault["error"] == (
        "the training loss of step 4 is nan: the training diverged; try a smaller `learning_rate`, or precision fp32 "
        "where it is a lower one"
    )
    assert fault["kind"] == "Diverged"
    assert fault["mistake"] is True  # no traceback, and no retry
    assert chain.checkpoints() in ([], [1])  # nothing is saved that cannot be used
    again = chain.forked(attempt=2)
    assert again.status == 1
    assert "not tried again" in again.errors


def test_the_first_loss_that_is_not_finite_is_told() -> None:
    losses = [(1, 2.0), (2, math.inf), (3, math.nan)]
    assert attempts.not_finite(losses, []).startswith("the training loss of step 2 is inf")
    assert attempts.not_finite(losses[:1], [{"step": 1, "test_loss": 0.5}]) == ""
