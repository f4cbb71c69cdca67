"""What a strategy needs at least of torch and Python: the planner skips, preflight stops, both with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plans import ROOT, strategy_folder
from relay.planning.config import load
from relay.planning.planner import plan
from relay.preflight.checks_node import least_versions
from relay.preflight.findings import Facts
from relay.spec.arithmetic import Arithmetic


def planned(tmp_path: Path, members: str, torch: str) -> Any:
    folder = strategy_folder(tmp_path / "own", "modern", members)
    config = load({"repeats": 1, "strategy_folders": [folder], "comparisons": [{"strategy": "modern"}]})
    return plan(config, gpus=0, cpus=4, root=ROOT, speeds=Path("none"), arithmetic=Arithmetic("", torch))


def test_a_strategy_that_needs_a_newer_torch_is_skipped(tmp_path: Path) -> None:
    (skipped,) = planned(tmp_path, "least_torch='2.9'", "2.5.1").skipped
    assert skipped.reasons == ("modern needs torch 2.9 or newer, has 2.5.1",)
    made = planned(tmp_path, "least_torch='2.9'", "2.13.0+cpu")
    assert not made.skipped
    (check,) = made.preflights.values()
    assert check.node_needs == ("torch>=2.9",)


def test_preflight_stops_what_the_node_is_too_old_for() -> None:
    def found(torch: str, *needs: str) -> Any:
        rank = {"rank": 0, "node": "n1", "torch": {"version": torch}, "python_version": "3.11.7"}
        run = {"node_needs": needs}
        return least_versions(Facts({"run": run, "job": None, "ranks": [rank], "allreduce": [], "complete": True}))

    stopped = found("2.5.1", "torch>=2.9", "libaio")
    assert stopped is not None
    assert stopped.severity == "stop"
    assert "needs torch 2.9 or newer, has 2.5.1 (rank 0 on n1)" in stopped.found
    assert found("2.5.1") is None
    assert "needs torch 2.5 or newer" in found("2.4.1").found
    assert "needs Python 3.12 or newer, has 3.11.7" in found("2.9.0", "python>=3.12").found
