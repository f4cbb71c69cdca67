"""Spot checks of runs whose faults show after the watched steps, or that leave little to compare."""

from __future__ import annotations

from typing import Any

import pytest

from chain_runs import Bench, Chain
from own_tasks import spec
from relay.run_folder.spots import Spot
from relay.spot_check.stretch import Findings
from spot_checked import figures, verdict
from test_spot_check import NORMALISED, of
from test_spots import planned as begun

pytest_plugins = ["chain_runs"]

SHORT = {"total_steps": 8, "evaluate_every_steps": 4}
DIGITS = spec("lenet-digits")
# A hundredth of the steps follow a stretch.
LONG = {"total_steps": 400, "evaluate_every_steps": 400, "checkpoint_minutes": 10.0}
SPOTS = (Spot("random step", 30, 32), Spot("end", 398, 400))
# No evaluation comes before its states: DDP gives all replicas the first one's statistics then, too.
AWAY = (Spot("random step", 5, 7), Spot("end", 6, 8))

# A fault that shows later: two steps after each save it still trains as it should, then with another learning rate.
LATER = """self.since = getattr(self, "since", 0) + 1
        loss = super().train_step(batch)
        for parameter in self.model.parameters():
            parameter.data *= 1.0 if self.since <= 2 else 1.02
        return loss

    def save(self, directory):
        self.since = 0
        return super().save(directory)

    def unused(self):
        pass"""
# Every gradient overflows, so that no step changes anything.
OVERFLOWS = """return super().train_step(batch)

    def update(self):
        for parameter in self.model.parameters():
            parameter.grad.fill_(float("inf"))
        super().update()

    def unused(self, batch):"""


def found_of(chain: Chain) -> dict[str, Any]:
    (found,) = verdict(chain.train(forked=True))
    return found


@pytest.mark.slow
def test_a_fault_that_shows_a_few_steps_after_each_save(bench: Bench) -> None:
    chain = begun(bench.chain("run", DIGITS, **LONG, **bench.strategy("later", LATER)), *SPOTS)
    found = found_of(chain)
    assert found["status"] == "failed"
    assert [problem.split(" differ ")[0] for problem in found["problems"]] == [
        "random step, steps 31 to 32: following losses"
    ]


@pytest.mark.slow
def test_a_training_in_fp16_that_overflows_at_every_step(bench: Bench) -> None:
    told = "fp16 has overflowed there and in an earlier stretch, where one plain process does not"
    found = found_of(bench.chain("run", DIGITS, precision="fp16", **SHORT, **bench.strategy("overflows", OVERFLOWS)))
    assert found["status"] == "failed"
    assert told in "\n".join(found["problems"])


@pytest.mark.slow
def test_statistics_of_right_replicas(bench: Bench) -> None:
    """Under DDP they begin each step with the first one's."""
    found = found_of(begun(bench.chain("run", NORMALISED, **SHORT, **of("ddp")), *AWAY))
    assert found["status"] == "passed", found
    assert max(figures(found, "statistics of replicas")) < 3e-6


def test_a_check_that_broke_off_is_no_pass() -> None:
    """An exception may come after a stretch that was right."""
    parts = [{"name": "losses"}]
    found = Findings("run", spots=[{"kind": "random step", "first": 5, "last": 7, "parts": parts}])
    assert found.as_dict()["status"] == "passed"
    found.broken = True
    assert found.as_dict()["status"] == "not checked"
