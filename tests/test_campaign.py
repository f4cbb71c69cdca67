"""Runs that are killed at random, anywhere, end bit for bit as uncut ones, and leave no process behind.

One kill with every call of the tests; a long campaign by itself, of as many kills as wanted:

    pytest -m long tests/test_campaign.py --kills=300 [--seed=N] -s

A failure names its seed; `--seed` repeats what was drawn.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from campaign import Campaign
from chain_kills import Kills
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


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_kills_of_scripts_that_are_chains(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """No other test kills such scripts at random: all kinds at once, for a killed chain mostly waits for something."""
    kills, seed = pytestconfig.getoption("kills"), pytestconfig.getoption("seed")
    third = kills // 3
    kinds = [Kills(tmp_path, kind, seed) for kind in ("plain", "ddp", "fsdp")]
    with ThreadPoolExecutor(len(kinds)) as threads:
        numbers = (kills - 2 * third, third, third)
        ended = [threads.submit(each.run, number) for each, number in zip(kinds, numbers, strict=True)]
    for each in ended:
        each.result()
    print(f"seed {seed}", *(each.table() for each in kinds), sep="\n")
    assert sum(each.kills for each in kinds) == kills
