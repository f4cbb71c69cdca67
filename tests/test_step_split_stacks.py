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


@pytest.mark.parametrize(
    ("stack", "base"),
    [
        ("horovod", "horovod"),
        pytest.param("deepspeed", "zero1", marks=pytest.mark.long),
        pytest.param("deepspeed", "zero3", marks=pytest.mark.long),
    ],
)
def test_who_is_quick_waits_for_who_computes(bench: Bench, stack: str, base: str) -> None:
    debian_packages.require()
    provide(stack)
    own = bench.strategy(f"busy_{base}", BUSY, base=base)
    found = StepSplit.read(bench.chain("results", DIGITS, stack=stack, **own, **RUN).train(forked=True).work)
    assert found
    quick, busy = found.ranks
    assert quick["communication"] >= 0.015
    assert busy["compute"] >= 0.02
    assert min(quick["optimizer"], busy["optimizer"]) > 0


@pytest.mark.long
def test_lightnings_own_thread_is_observed(bench: Bench) -> None:
    provide("lightning")
    run = {"strategy": "lightning_ddp", "stack": "lightning"}
    found = StepSplit.read(bench.chain("results", DIGITS, **run, **RUN).train(forked=True).work)
    assert found
    assert all(rank[part] > 0 for rank in found.ranks for part in ("data", "compute", "communication", "optimizer"))
