"""The benchmarks run, in small, and print what they are said to."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
RUN = runpy.run_path(str(BENCHMARKS / "run.py"))


# In small. What is exact of it, an idle machine tells.
def test_results_are_a_table_with_targets() -> None:
    row = RUN["Row"]("speed", "another", "loop", reach=0.5, shown=("other_samples_per_second",))
    found = {"median_ratio": 0.51, "quartiles": [0.5, 0.52], "rounds": 3, "other_samples_per_second": 9}
    assert (
        RUN["line"](row, found) == "| speed | another | ≥ 0.5 | 0.51 (0.5 – 0.52) | yes | other samples per second 9 |"
    )
    assert RUN["line"](row, found | {"median_ratio": 0.4}).split(" | ")[4] == "no"
    assert RUN["line"](row, "left out: no GPU") == "| speed | another | ≥ 0.5 | left out: no GPU | | |"
    assert all((BENCHMARKS / f"{row.script}.py").is_file() for row in RUN["ROWS"])
