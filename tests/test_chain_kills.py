"""Scripts that are chains are killed at random, anywhere, and end bit for bit as those that nobody killed.

A long campaign by itself, of as many kills as wanted:

    pytest -m long tests/test_chain_kills.py --kills=100 [--seed=N] -s
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chain_kills import Kills


def campaign(folder: Path, seed: int, kills: dict[str, int]) -> None:
    """All kinds at once: most of the time a killed chain waits for something."""
    kinds = [Kills(folder, kind, seed) for kind in kills]
    with ThreadPoolExecutor(len(kinds)) as threads:
        ended = [threads.submit(each.run, kills[each.kind]) for each in kinds]
    for each in ended:
        each.result()
    print(f"seed {seed}", *(each.table() for each in kinds), sep="\n")
    assert {each.kind: each.kills for each in kinds} == kills


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_kills(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """No other test kills such scripts at random."""
    kills = pytestconfig.getoption("kills")
    third = kills // 3
    campaign(tmp_path, pytestconfig.getoption("seed"), {"plain": kills - 2 * third, "ddp": third, "fsdp": third})
