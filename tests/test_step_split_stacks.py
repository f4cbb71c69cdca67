"""What a step's time goes to is told for the further stacks, too, whose communication no profiler of torch shows."""

from __future__ import annotations

import pytest

import debian_packages
from chain_runs import DIGITS, Bench
from relay.run_folder.step_split import StepSplit
from stacks import provide

pytest_plugins = ["chain_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

# The second rank computes for 20 ms more than the first one, before each step.
BUSY = """
        end = time.thread_time() + 0.02 * self.ranks.rank
        while time.thread_time() < end:
            pass
"""
RUN = {"total_steps": 50, "evaluate_every_steps": 50, "warmup_steps": 0, "checkpoint_minutes": 60.0}
RUN |= {"devices_per_node": 2, "launcher": "torchrun"}


@pytest.mark.slow
def test_who_is_quick_waits_for_who_computes(bench: Bench) -> None:
    debian_packages.require()
    provide("horovod")
    own = bench.strategy("busy_horovod", BUSY, base="horovod")
    found = StepSplit.read(bench.chain("results", DIGITS, stack="horovod", **own, **RUN).train(forked=True).work)
    assert found
    quick, busy = found.ranks
    assert quick["communication"] >= 0.015
    assert busy["compute"] >= 0.02
    assert min(quick["optimizer"], busy["optimizer"]) > 0
