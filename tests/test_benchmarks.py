"""The benchmarks run, in small, and print what they are said to."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
RUN = runpy.run_path(str(BENCHMARKS / "run.py"))


def printed(name: str, *options: str) -> dict[str, Any]:
    """What the benchmark prints."""
    command = [sys.executable, BENCHMARKS / f"{name}.py", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# In small. What is exact of it, an idle machine tells.
SMALL = {
    "loop": "--against bare --steps 4 --rounds 2 --global-batch-size 64",
    "loaders": "--steps 4 --rounds 2 --global-batch-size 64",
    "settings": "--ours {} --theirs {} --steps 40 --rounds 1",
    "knobs": "--task lenet-digits --global-batch-size 64 --steps 24 --rounds 1 --knobs 'huge pages'",
    "monitor_cost": "--steps 110 --rounds 1 --monitor-seconds 0.05",
    "interop": "--network forked --steps 3 --rounds 2",
    "hop": "--strategy ddp --processes 2 --rounds 1",
    "planning": "--runs 6 --rounds 1 --growth 2",
    "large_comparison": "--runs 12 --settings 6",
    "driving": "--runs 2 --segments 2 --growth 2",
}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ratios_are_measured() -> None:
    """No other test runs these benchmarks."""
    for name, options in SMALL.items():
        assert printed(name, *shlex.split(options))["median_ratio"] > 0, name


def test_results_are_a_table_with_targets() -> None:
    row = RUN["Row"]("speed", "another", "loop", reach=0.5, shown=("other_samples_per_second",))
    found = {"median_ratio": 0.51, "quartiles": [0.5, 0.52], "rounds": 3, "other_samples_per_second": 9}
    assert (
        RUN["line"](row, found) == "| speed | another | ≥ 0.5 | 0.51 (0.5 – 0.52) | yes | other samples per second 9 |"
    )
    assert RUN["line"](row, found | {"median_ratio": 0.4}).split(" | ")[4] == "no"
    assert RUN["line"](row, "left out: no GPU") == "| speed | another | ≥ 0.5 | left out: no GPU | | |"
    assert all((BENCHMARKS / f"{row.script}.py").is_file() for row in RUN["ROWS"])
