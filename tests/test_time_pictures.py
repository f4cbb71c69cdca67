"""The page's pictures of where time goes: drawn from what was recorded, and left out where nothing was."""

from __future__ import annotations

import re
from typing import Any

from relay.comparison.inputs import read_inputs
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.table import comparison_rows
from relay.comparison.time_pictures import step_plot, timeline_plot, usage_plot
from results_tree import Tree

pytest_plugins = ["results_tree"]

NOTHING = dict.fromkeys(("startup", "loading", "repeated", "evaluation", "saving", "idle"), 0.0)
STEP = {f"step_{part}_fraction": 0.0 for part in ("data", "compute", "communication", "optimizer", "no_cpu", "idle")}


def job(number: int, queued: float | None = None, last: int | None = 22, **parts: float) -> dict[str, Any]:
    return {"attempt": number, "job": None, "last": last, "queued": queued, "parts": NOTHING | {"steps": 8.0} | parts}


def results(tree: Tree) -> list[SettingResult]:
    inputs = read_inputs(tree.write_plan(), tree.root)
    return setting_results(inputs, comparison_rows(inputs))


def texts(svg: str | None) -> list[str]:
    assert svg
    return [text.strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def test_without_records_of_time_there_are_no_pictures(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1010.0])
    assert [plot(results(tree), "x") for plot in (usage_plot, timeline_plot, step_plot)] == [None, None, None]


def test_each_job_is_a_bar_with_its_parts(tree: Tree) -> None:
    jobs = [job(1, 75.0, loading=2.0), job(2, 5.0, None, repeated=10.0)]
    tree.setting("cpu", [1000.0], name="x", summary={"jobs": jobs})
    found = texts(timeline_plot(results(tree), "x"))
    assert {"useful steps", "import and loading", "steps done again"} <= set(found)
    assert "evaluation" not in found, "a part that no job had"
    assert "job 1, to step 22; queued 1 min 15 s" in found
    assert "job 2, killed; queued 5 s" in found
    assert "80 %" in found, "of the first job's 10 seconds"


def test_a_step_is_a_bar_of_its_parts(tree: Tree) -> None:
    split = STEP | {"step_compute_fraction": 0.7, "step_communication_fraction": 0.3}
    tree.setting("ddp", [1000.0], name="x", devices_per_node=2, summary=split)
    tree.setting("cpu", [500.0], name="y")
    found = texts(step_plot(results(tree), "x"))
    assert {"compute", "exposed communication", "70 %", "30 %"} <= set(found)
    assert not {"optimizer", "idle GPU"} & set(found)
    assert not any(text.startswith("cpu") for text in found), "its steps were not observed"
    assert tree.compare() == 0
    assert "Not observed, because their jobs have too few steps for it: cpu (" in tree.html
