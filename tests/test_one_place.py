"""To add an axis, or a strategy with a need of its own, is one edit in one file: all else follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAST = '        label="activations recomputed|activations kept",\n        axis=Axis(),\n    )\n'
AXIS = '    fused: bool = declare(False, means="whether the update is fused", label="fused|not fused", axis=Axis())\n'
ASK = """
import json
from relay.comparison.columns import COMPARISON
from relay.planning.config import Config, load
from relay.planning.planner import plan
from relay.planning.table import described
from relay.spec.labels import setting_labels
made = plan(load({"repeats": 1, "comparisons": [{"strategy": "cpu", "fused": [False, True]}]}), gpus=0)
settings = [planned.setting for planned in made.settings]
print(json.dumps({
    "values": [setting.computation.fused for setting in settings], "runs": len({run.id for run in made.runs}),
    "gates": len(made.gates), "labels": setting_labels([described(setting) for setting in settings]),
    "column": COMPARISON["fused"].__name__, "schema": "fused" in json.dumps(Config.model_json_schema()),
}))
"""
STRATEGY = """
from relay.strategies.base import Requirements, Strategy


def a_pair(setting, group, stages):
    count = setting.batch.global_batch_size
    return None if count % 2 == 0 else f"{setting.strategy.name} takes samples in pairs, the batch has {count}"


class Paired(Strategy):
    requirements = Requirements(processes="one", devices=("cpu",), backends=("gloo",), needs=("a_pair",))

    def build(self):
        self.build_whole()
"""
PLAN = """
import json, sys
from relay.planning.config import load
from relay.planning.planner import plan
asked = {"strategy": "paired", "global_batch_size": [32, 33]}
made = plan(load({"repeats": 1, "strategy_folders": [sys.argv[1]], "comparisons": [asked]}), gpus=0)
runs = [run.batch.global_batch_size for run in made.runs]
reasons = [skipped.reasons for skipped in made.skipped]
print(json.dumps({"runs": runs, "reasons": reasons, "torch": "torch" in sys.modules}))
"""


def answer(scripts: Path, program: str, *arguments: str) -> Any:
    """What the program prints, on that copy of the code."""
    command = [sys.executable, "-c", program, *arguments]
    environment = os.environ | {"PYTHONPATH": str(scripts)}
    done = subprocess.run(command, cwd=scripts.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_an_axis_is_one_line(tmp_path: Path) -> None:
    for folder in ("scripts", "envs", "config", "workflow/rules"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", tmp_path)
    file = tmp_path / "scripts" / "relay" / "spec" / "setting.py"
    text = file.read_text()
    assert text.count(LAST) == 1
    file.write_text(text.replace(LAST, LAST + AXIS))
    labels = ["1 proc, 1 thread, resident, not fused", "1 proc, 1 thread, resident, fused"]
    assert answer(tmp_path / "scripts", ASK) == {
        "values": [False, True],
        "runs": 2,
        "gates": 2,
        "labels": labels,
        "column": "bool",
        "schema": True,
    }


@pytest.mark.slow
def test_a_strategy_with_a_need_of_its_own_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "paired.py").write_text(STRATEGY)
    reason = "paired takes samples in pairs, the batch has 33"
    assert answer(ROOT / "scripts", PLAN, str(tmp_path)) == {"runs": [32], "reasons": [[reason]], "torch": False}
