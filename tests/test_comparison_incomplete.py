"""The comparison of incomplete, damaged or empty results; and its files, which are old or new, never half."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import compare
from results_tree import Tree, status

pytest_plugins = ["results_tree"]


def test_broken_summary_and_missing_verdict_are_failures_of_their_own_setting(tree: Tree) -> None:
    broken = tree.setting("ddp", [9000.0], name="broken", devices_per_node=2)[0]
    (tree.root / "runs" / broken / "summary.json").write_text('{"run": ')
    tree.setting("fsdp", [9000.0], name="ungated", devices_per_node=2)
    (tree.root / "equivalence/gates/gate-ungated/verdict.json").unlink()
    tree.setting("cpu", [100.0, 101.0])
    assert "summary.json: is no JSON" in tree.row("ddp", partial=True)["reason"]
    ungated = tree.row("fsdp", partial=True)
    assert (ungated["status"], ungated["equivalent"]) == ("failed", None)
    assert "gave no verdict" in ungated["reason"]
    assert tree.row("cpu", partial=True)["standing"] == "fastest"


def remove_summary(tree: Tree, identity: str) -> None:
    tree.fail(identity, "RuntimeError: lost")


def spoil_run(tree: Tree, identity: str) -> None:
    tree.write(f"runs/{identity}/run.json", {"id": identity, "task": {}})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (remove_summary, "summary.json: is missing"),
        (spoil_run, "run.json: is no run of this version"),
    ],
)
def test_incomplete_results_are_one_line_and_lose_nothing(
    tree: Tree, capsys: pytest.CaptureFixture[str], damage: Callable[[Tree, str], None], named: str
) -> None:
    identity = tree.setting("cpu", [100.0], name="a")[0]
    assert tree.compare() == 0
    before = {path: path.read_bytes() for path in tree.root.glob("*.*") if path.name != "plan.json"}
    damage(tree, identity)
    capsys.readouterr()
    assert tree.compare() == 1
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in tree.root.glob("*.*") if path.name != "plan.json"} == before
    assert len(before) == 10


def test_missing_plan_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(compare.main, "--plan", str(tmp_path / "plan.json"), "--results", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/plan.json: is missing; run the stage that makes it first\n"


@pytest.mark.slow
def test_writing_leaves_no_temporary_file_and_is_repeatable(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0])
    assert tree.compare() == 0
    first = {path.name: path.read_bytes() for path in tree.root.iterdir() if path.is_file()}
    answer, tables = (
        {"answer.json", "recommendation.sbatch"},
        {"comparison.csv", "comparison.parquet", "comparison.md", "runs.csv", "scaling.csv", "scaling.md"},
    )
    assert set(first) == {*answer, *tables, "comparison.html", "compared.json", "plan.json"}
    assert tree.compare() == 0
    assert {path.name: path.read_bytes() for path in tree.root.iterdir() if path.is_file()} == first
