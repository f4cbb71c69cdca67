"""What spot checks found, in the comparison: a failed one strikes out, one that was not made is told."""

from __future__ import annotations

from typing import Any

import pytest

from results_tree import Tree

pytest_plugins = ["results_tree"]

PROBLEM = "end, steps 43 to 44: update differ from one plain process's by 5.0e-01, allowed is 2e-05"


class Checked(Tree):
    """Results whose plan asks for spot checks."""

    def write_plan(self) -> Any:
        told = {"runs": self.runs, "skipped": self.skipped, "margin": self.margin, "spot_checks": True}
        return self.write("plan.json", told)

    def found(self, setting: str, runs: list[str], *statuses: str) -> None:
        told = [
            {
                "run": run,
                "status": status,
                "generation": "1",
                "spots": [{}] if status != "not checked" else [],
                "problems": [PROBLEM] if status == "failed" else [],
                "unchecked": ["its files are gone"] if status == "not checked" else [],
            }
            for run, status in zip(runs, statuses, strict=True)
        ]
        self.write(f"equivalence/spot_checks/{setting}/verdict.json", {"setting": setting, "runs": told})


@pytest.fixture
def checked(tmp_path: Any) -> Checked:
    return Checked(tmp_path)


def test_a_failed_spot_check_strikes_its_setting_out(checked: Checked) -> None:
    checked.setting("cpu", [100.0, 101.0])
    runs = checked.setting("ddp", [900.0, 901.0], name="fast")
    checked.found("fast", runs, "passed", "failed")
    row = checked.row("ddp")
    assert row["equivalent"] is False
    assert row["standing"] is None
    assert row["reason"] == f"repeat 2: spot check failed: {PROBLEM}"
    assert row["spot_checks"] == "1 passed, 1 failed"
    assert "1 struck out" in checked.headline()


def test_a_verdict_on_an_earlier_start_is_none(checked: Checked) -> None:
    (run,) = checked.setting("cpu", [100.0], name="one")
    checked.found("one", [run], "failed")
    checked.write(f"checkpoints/{run}/chain.json", {"generation": "2"})
    assert checked.row("cpu")["spot_checks"] == "1 not checked"


def test_a_failed_spot_check_strikes_out_what_no_gate_can_prove(checked: Checked) -> None:
    unprovable = {"equivalent": False, "unprovable": "the loss is no mean"}
    runs = checked.setting("ddp", [900.0, 901.0], name="fast", verdict=unprovable)
    checked.found("fast", runs, "passed", "failed")
    row = checked.row("ddp")
    assert (row["equivalent"], row["unproven"], row["standing"]) == (False, None, None)
    assert PROBLEM in row["reason"]
