"""Records that are no result: whatever the speed, such a run has failed, and does not stand as best."""

from __future__ import annotations

import math
from typing import Any

import pytest

from chain_runs import DIGITS, VECTORS, Bench, short_run
from relay.spec.run import Run, changed
from relay.training.unusable import no_result

pytest_plugins = ["chain_runs"]

LOSSES = [(step, 2.0 - step / 10) for step in range(1, 13)]
EVALUATED = [{"step": 12, "test_loss": 0.5, "test_accuracy": 0.9}]
# One replica of two reports no number, at the last step alone: the mean of both is none.
LAST_LOSS_OF_ONE_REPLICA = """pass

    def train_step(self, batch):
        self.steps = getattr(self, "steps", 0) + 1
        loss = super().train_step(batch)
        return loss * float('nan') if self.steps == 6 and self.ranks.rank == 1 else loss

    def unused(self, batch):"""


@pytest.fixture(scope="module")
def run() -> Run:
    return changed(short_run(DIGITS), total_steps=12)


def test_whole_records_are_a_result(run: Run) -> None:
    assert no_result(run, LOSSES, EVALUATED) == ""
    assert no_result(run, LOSSES[5:], EVALUATED, began=5) == "", "it went on from another run's checkpoint"


@pytest.mark.parametrize(
    ("losses", "evaluations", "told"),
    [
        (LOSSES[:4] + LOSSES[6:], EVALUATED, "2 of 12 steps have no training loss in its records, the first is 5"),
        (LOSSES, [EVALUATED[0] | {"step": 6}], "the evaluation after the last step, 12, is missing"),
        (LOSSES, [EVALUATED[0] | {"test_accuracy": None}], "the test accuracy of step 12 is missing"),
        (LOSSES, [EVALUATED[0] | {"test_accuracy": math.nan}], "the test accuracy of step 12 is nan"),
        ([*LOSSES[:-1], (12, math.nan)], EVALUATED, "the training loss of step 12 is nan"),
        ([(step, 0.25) for step, _ in LOSSES], EVALUATED, "the training loss is 0.25 at every step"),
    ],
)
def test_what_is_no_result_is_told(run: Run, losses: Any, evaluations: Any, told: str) -> None:
    assert no_result(run, losses, evaluations).startswith(told)


def test_a_task_without_classes_has_no_accuracy() -> None:
    regression = changed(short_run(VECTORS), total_steps=12)
    assert no_result(regression, LOSSES, [EVALUATED[0] | {"test_accuracy": None}]) == ""


@pytest.mark.slow
def test_the_last_loss_of_one_replica_ends_the_run(bench: Bench) -> None:
    strategy = bench.strategy("mine", LAST_LOSS_OF_ONE_REPLICA, base="ddp")
    chain = bench.chain("results", total_steps=6, launcher="torchrun", devices_per_node=2, **strategy)
    assert chain.forked().status == 1
    assert chain.fault()["error"].startswith("the training loss of step 6 is nan")
