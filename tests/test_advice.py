"""Warnings with advice: each is given where its figure says so, with that figure, and not otherwise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from relay.comparison.advice import Warned, warnings
from relay.comparison.inputs import read_inputs
from relay.comparison.measured import setting_results
from relay.comparison.table import comparison_rows
from results_tree import Tree

pytest_plugins = ["results_tree"]

STEADY = [1000.0, 1001.0, 999.0]


def warned(tree: Tree) -> list[Warned]:
    """The warnings, with the settings' ids in place of their names."""
    inputs = read_inputs(tree.write_plan(), tree.root)
    results = setting_results(inputs, comparison_rows(inputs))
    ids = {each.name: each.row["setting"] for each in results}
    return [replace(found, setting=ids[found.setting]) for found in warnings(results)]


def only(tree: Tree, setting: str) -> Warned:
    (found,) = [each for each in warned(tree) if each.setting == setting]
    return found


def with_job(tree: Tree, identities: list[str], **asked: Any) -> None:
    """The runs' specifications, as jobs of a cluster have them."""
    for identity in identities:
        tree.give_job(identity, **asked)


def test_a_sound_comparison_has_no_warning(tree: Tree) -> None:
    ids = tree.setting("cpu", STEADY)
    with_job(tree, ids, memory_mb=1200, minutes=5)
    assert warned(tree) == []


@pytest.mark.parametrize(
    ("loader", "workers", "advice"), [("dataloader", 2, "data_workers (2 now)"), ("resident", 0, "fewer processes")]
)
def test_loader_bound(tree: Tree, loader: str, workers: int, advice: str) -> None:
    tree.setting("cpu", STEADY, name="x", loader=loader, data_workers=workers, summary={"data_wait_fraction": 0.31})
    found = only(tree, "x")
    assert (found.kind, "31 %" in found.figure, advice in found.advice) == ("loader-bound", True, True)


def test_a_noisy_node_is_named_and_its_repeat_counts(tree: Tree) -> None:
    ids = tree.setting("cpu", [1000.0, 1001.0, 700.0, 999.0], name="x")
    path = tree.root / "runs" / ids[2] / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hosts": ["node7"]}))
    found = only(tree, "x")
    assert (found.kind, found.figure) == (
        "noisy node",
        "repeat 3 ran at 0.70 times the speed of the others, on node7",
    )
    assert tree.rows()[0]["samples_per_second"] < 930


def test_memory_and_time_asked_for_and_not_used(tree: Tree) -> None:
    ids = tree.setting("cpu", STEADY, name="x", summary={"train_seconds": 3.0, "allocated_seconds": 30.0})
    with_job(tree, ids, memory_mb=16000, minutes=60)
    memory, time = warned(tree)
    assert (memory.kind, time.kind) == ("memory asked for and not used", "time asked for and not used")
    needed = math.ceil((302 + 512) * 1.25)
    assert "16,000 MB" in memory.figure
    assert f"of which {needed:,} MB would do" in memory.figure
    assert memory.advice.startswith("set memory_mb_per_node to what the neediest setting needs")
    assert time.figure == "60 minutes, of which a job used 0.25, and 2 would do"
    assert time.advice.startswith("set runtime_minutes to what the longest setting needs")
