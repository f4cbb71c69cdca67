"""Lightning's Trainer as a strategy: its gate, planted faults, and its chain of segments."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chain_results import assert_same, result
from chain_runs import Bench
from gate_runs import FEW_STEPS, Gates
from library_runs import CUT, STEPS, begun
from relay import strategies
from stacks import provide

pytest_plugins = ["chain_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lightning", "one_thread")]


@pytest.fixture(scope="module")
def lightning() -> Path:
    """The stack's interpreter; the tests' own forks see its packages, too."""
    return provide("lightning")


# The gate


def test_the_gate_finds_it_equivalent(gates: Gates) -> None:
    verdict = gates.verdict("lightning_ddp", 2, steps=FEW_STEPS)
    assert verdict["equivalent"], verdict["problems"]


# The chain of segments

STRATEGY = "lightning_ddp.LightningDDP"


@pytest.mark.long
def test_cut_short_it_ends_bit_for_bit_as_uncut(bench: Bench) -> None:
    """No other test cuts Lightning short, or has it keep its own checkpoint beside the run's.

    Dropout draws masks: a step that was replayed or skipped would show.
    """
    options = dict(strategies.load("lightning_ddp").requirements.options) | {"model_checkpoint": True}
    chain = begun(bench, STRATEGY, "uncut", options=options).train(forked=True)
    uncut = result(chain)
    weights = torch.load(chain.work / f"step-{STEPS}" / "strategy" / "lightning.ckpt", weights_only=True)["state_dict"]
    ours = uncut["state"]["model"]
    assert set(weights) == {f"network.{name}" for name in ours}
    assert_same({name: weights[f"network.{name}"] for name in ours}, ours)
    for number, told in (("SIGTERM", f"stopped at step {CUT} of {STEPS}"), ("SIGKILL", "status -9")):
        cut = begun(bench, STRATEGY, number.lower(), number, cut=CUT, options=options)
        ended = cut.forked()
        assert ended.status == 75, ended.errors
        assert told in ended.errors
        ended = cut.forked(attempt=2)
        assert ended.status == 0, ended.errors
        assert cut.started_at()[0] == 0
        assert 0 < cut.started_at()[1] <= CUT
        assert_same(result(cut), uncut)
