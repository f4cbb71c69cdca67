"""Runs that are killed at random, anywhere, end bit for bit as uncut ones, and leave no process behind.

One kill with every call of the tests; a long campaign by itself, of as many kills as wanted:

    pytest -m long tests/test_campaign.py --kills=300 [--seed=N] -s

A failure names its seed; `--seed` repeats what was drawn.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from campaign import OfRuns, OfScripts
from chain_runs import Bench
from kills import Campaign


def killed(campaign: Campaign, kills: int) -> None:
    campaign.run(kills)
    print(f"seed {campaign.seed}\n{campaign.table()}")
    assert campaign.counts.total() == kills


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill(bench: Bench, pytestconfig: pytest.Config) -> None:
    killed(OfRuns(bench, pytestconfig.getoption("seed"), ("ddp, dropout",)), 1)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_kills(bench: Bench, pytestconfig: pytest.Config) -> None:
    """Only this kills runs of every way to divide a model, at every phase."""
    killed(OfRuns(bench, pytestconfig.getoption("seed")), pytestconfig.getoption("kills"))


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_kills_of_scripts_that_are_chains(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """No other test kills such scripts at random: all kinds at once, for a killed chain mostly waits for something."""
    kills, seed = pytestconfig.getoption("kills"), pytestconfig.getoption("seed")
    third = kills // 3
    with ThreadPoolExecutor(3) as threads:
        kinds = {"plain": kills - 2 * third, "ddp": third, "fsdp": third}
        campaigns = [(OfScripts(Bench(tmp_path / kind, tmp_path), seed, (kind,)), many) for kind, many in kinds.items()]
        ended = [threads.submit(killed, *each) for each in campaigns]
    for each in ended:
        each.result()
