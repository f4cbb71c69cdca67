"""Runs that are killed at random, anywhere, end bit for bit as uncut ones, and leave no process behind.

One kill with every call of the tests; a long campaign by itself, of as many kills as wanted:

    pytest -m long tests/test_campaign.py --kills=300 [--seed=N] -s

A failure names its seed; `--seed` repeats what was drawn.
"""

from __future__ import annotations

import pytest

from campaign import Campaign
from chain_runs import Bench

pytest_plugins = ["chain_runs"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill(bench: Bench, pytestconfig: pytest.Config) -> None:
    campaign = Campaign(bench, pytestconfig.getoption("seed"), ("ddp, dropout",))
    campaign.run(1)
    print(campaign.table())
    assert campaign.counts.total() == 1


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_kills(bench: Bench, pytestconfig: pytest.Config) -> None:
    """Only this kills runs of every way to divide a model, at every phase."""
    campaign = Campaign(bench, pytestconfig.getoption("seed"))
    print(f"campaign: seed {campaign.seed}")
    campaign.run(pytestconfig.getoption("kills"))
    print(campaign.table())
    assert campaign.counts.total() == pytestconfig.getoption("kills")
