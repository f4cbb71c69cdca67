"""The page on writing a strategy: what it shows is taken out of it, and proven."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from chain_runs import Chain
from gate_runs import FEW_STEPS, Gates
from relay.planning import config
from relay.planning.planner import plan
from relay.spec.run import changed
from relay.training.summary import summarise

pytest_plugins = ["chain_runs"]

ROOT = Path(__file__).resolve().parents[1]
DIVISION = "            parameter.grad /= self.ranks.world_size\n"


def block(language: str) -> str:
    """The first block of code in that language."""
    found = re.search(rf"(?ms)^```{language}\n(.*?)^```", (ROOT / "docs/own-strategy.md").read_text())
    assert found is not None
    return found[1]


@pytest.mark.slow
def test_the_strategy_on_the_page_is_equivalent_and_without_its_division_it_is_not(
    gates: Gates, tmp_path: Path
) -> None:
    shown = block("python")
    assert shown.count(DIVISION) == 1
    (tmp_path / "my_ddp.py").write_text(shown)
    (tmp_path / "my_sum.py").write_text(shown.replace(DIVISION, ""))
    verdicts = [
        gates.verdict(name, 2, steps=FEW_STEPS, folders=[tmp_path])["equivalent"] for name in ("my_ddp", "my_sum")
    ]
    assert verdicts == [True, False]


@pytest.mark.slow
def test_the_strategy_on_the_page_trains_from_the_config_on_the_page(tmp_path: Path, prepared: Path) -> None:
    """Planned and trained as the workflow does it, a few steps long."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/my_ddp.py").write_text(block("python"))
    asked = yaml.safe_load(block("yaml")) | {"strategy_folders": [str(tmp_path / "mine")], "device": "cpu"}
    planned = plan(config.load(asked), gpus=0, cpus=2)
    assert not planned.skipped
    run = changed(next(run for run in planned.runs if run.strategy.name == "my_ddp"), total_steps=6)
    (tmp_path / "datasets").symlink_to(prepared)
    chain = Chain(tmp_path, run)
    run.write(chain.declared / "run.json")
    chain.start_anew("first")
    ended = chain.forked()
    assert ended.status == 0, ended.errors
    losses = summarise(run, chain.work)["losses"]
    assert losses["steps"] == [1, 2, 3, 4, 5, 6]
    assert losses["values"][-1] < losses["values"][0]
