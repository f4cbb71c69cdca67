"""A proof of strategies and data of one's own, in processes that are forks of the one that proves."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.long
def test_a_proof_finds_strategies_of_ones_own_and_the_fault_of_a_broken_one(tmp_path: Path) -> None:
    own = tmp_path / "strategies"
    own.mkdir()
    text = (ROOT / "tests/strategies/right_ddp_by_hand.py").read_text()
    (own / "mine.py").write_text(text)
    (own / "_by_hand.py").write_text((ROOT / "tests/strategies/_by_hand.py").read_text())
    (own / "broken.py").write_text("import no_such_package\n" + text)
    comparisons = [{"strategy": name, "devices_per_node": 2} for name in ("mine", "broken")]
    config = {"device": "cpu", "strategy_folders": [str(own)], "comparisons": comparisons}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, ROOT / "scripts" / "prove.py", "mine.yaml", "--steps", "20", "--precision", "fp64"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    with (tmp_path / "results/proof/table.csv").open(newline="") as stream:
        found = {line["strategy"]: line for line in csv.DictReader(stream)}
    assert found["mine"]["equivalent"] == "True", found
    assert "no_such_package" in found["broken"]["problems"]
