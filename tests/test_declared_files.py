"""Files that a strategy reads and declares belong to its code."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain_runs import Bench, Chain
from own_gates import own_strategy
from relay.base.files import read_json
from relay.planning import config, planner
from relay.spec.identity import source_digest, strategy_sources
from relay.training.changed_code import source_today, warnings

pytest_plugins = ["chain_runs"]

DECLARED = 'files=("rates.json", "tables/more.txt")'
READS = """
        import json, numpy, torch
        {opens}
"""
BESIDE = 'json.loads(Path(__file__).with_name("rates.json").read_text())'


def with_files(folder: Path, name: str = "mine", *, declares: str = DECLARED, opens: str = BESIDE) -> Path:
    path = own_strategy(folder, name, requirements=declares, more=READS.format(opens=opens))
    (folder / "rates.json").write_text('{"rate": 1}')
    (folder / "tables").mkdir(exist_ok=True)
    (folder / "tables" / "more.txt").write_text("more")
    return path


def gate_of(path: Path) -> str:
    asked = {"device": "cpu", "strategy_folders": [str(path.parent)], "comparisons": [{"strategy": path.stem}]}
    (gate,) = planner.plan(config.load(asked), gpus=0).gates
    return gate


def test_a_declared_file_is_part_of_what_the_gate_proves(tmp_path: Path) -> None:
    path = with_files(tmp_path)
    before, digest = gate_of(path), source_digest(strategy_sources(path))
    (tmp_path / "unread.json").write_text("{}")
    assert gate_of(path) == before
    (tmp_path / "tables/more.txt").write_text("another")
    assert gate_of(path) != before
    assert source_digest(strategy_sources(path)) != digest


def run_of(bench: Bench, path: Path) -> Chain:
    return bench.chain("results", total_steps=6, strategy=path.stem, strategy_file=str(path))


@pytest.mark.slow
def test_a_run_keeps_the_file_that_it_began_with(bench: Bench, tmp_path: Path) -> None:
    chain = run_of(bench, with_files(tmp_path / "mine"))
    assert chain.segment(0, 3).status == 0
    frozen = read_json(chain.work / "chain.json")["code"]
    (tmp_path / "mine" / "rates.json").write_text("no JSON at all")
    assert source_today(chain.run) != read_json(chain.work / "chain.json")["strategy_source"]
    (told,) = warnings([chain.run], chain.results)
    assert "its code has changed" in told
    ended = chain.segment(3, 6)
    assert ended.status == 0, ended.errors
    assert read_json(chain.work / "chain.json")["code"] == frozen
