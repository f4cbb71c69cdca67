"""A summary or a verdict with a value that none of its kind has is a failure of its own setting, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from results_tree import Tree

pytest_plugins = ["results_tree"]
NAN = float("nan")


def spoil(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"losses": None}, "'losses' is damaged (None)"),
        ({"losses": {"steps": [1], "values": ["low"]}}, "the losses or evaluations of its summary.json are damaged"),
        ({"samples_per_second": "fast"}, "'samples_per_second' is damaged ('fast')"),
        ({"samples_per_second": NAN}, "its samples_per_second is nan"),
        ({"test_accuracy": NAN}, "its test_accuracy is nan"),
    ],
)
def test_a_damaged_summary_fails_its_setting_and_no_other(tree: Tree, values: dict[str, Any], told: str) -> None:
    (identity,) = tree.setting("ddp", [9000.0], devices_per_node=2)
    tree.setting("cpu", [100.0, 101.0])
    spoil(tree.root / "runs" / identity / "summary.json", **values)
    row = tree.row("ddp", partial=True)
    assert (row["status"], told in row["reason"]) == ("failed", True), row["reason"]
    assert tree.row("cpu", partial=True)["standing"] == "fastest"


@pytest.mark.parametrize(("values", "told"), [({"parts": 7}, "gave no verdict"), ({"equivalent": "no"}, "no verdict")])
def test_a_damaged_verdict_is_none(tree: Tree, values: dict[str, Any], told: str) -> None:
    tree.setting("ddp", [9000.0, 9001.0], name="x", devices_per_node=2)
    spoil(tree.root / "equivalence/gates/gate-x/verdict.json", **values)
    row = tree.row("ddp", partial=True)
    assert (row["status"], told in row["reason"]) == ("failed", True)
