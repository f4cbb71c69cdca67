"""Scaling efficiency: against which setting, and where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from results_tree import REFUSED, Tree

pytest_plugins = ["results_tree"]


def test_strong_scaling_is_against_itself_on_the_fewest_devices(tree: Tree) -> None:
    for devices, speed in ((2, 200.0), (4, 300.0), (8, 400.0)):
        tree.setting("ddp", [speed, speed], devices_per_node=devices)
    tree.setting("cpu", [150.0, 150.0])
    rows = {(row["strategy"], row["devices_per_node"]): row for row in tree.rows()}
    assert rows["ddp", 2]["scaling_efficiency"] is None
    assert rows["ddp", 4]["scaling_efficiency"] == pytest.approx(0.75)
    assert rows["ddp", 8]["scaling_efficiency"] == pytest.approx(0.5)
    assert (rows["ddp", 8]["scaling"], rows["ddp", 8]["scaling_baseline_devices"]) == ("strong", 2)
    assert rows["cpu", 1]["scaling_efficiency"] is None


def test_weak_scaling_where_the_batch_grows_with_the_devices(tree: Tree) -> None:
    tree.setting("ddp", [200.0, 200.0], devices_per_node=2, global_batch_size=64)
    tree.setting("ddp", [380.0, 380.0], devices_per_node=4, global_batch_size=128)
    efficient = tree.rows()[0]
    assert (efficient["scaling"], efficient["scaling_efficiency"]) == ("weak", pytest.approx(0.95))


@pytest.mark.parametrize("other", [{"loader": "dataloader"}, {"global_batch_size": 96}])
def test_no_efficiency_where_more_than_the_size_differs(tree: Tree, other: dict[str, Any]) -> None:
    tree.setting("ddp", [200.0, 200.0], devices_per_node=2)
    tree.setting("ddp", [300.0, 300.0], devices_per_node=4, **other)
    assert [row["scaling_efficiency"] for row in tree.rows()] == [None, None]


def test_no_efficiency_against_a_struck_out_setting(tree: Tree) -> None:
    tree.setting("ddp", [200.0, 200.0], devices_per_node=2, verdict=REFUSED)
    tree.setting("ddp", [300.0, 300.0], devices_per_node=4)
    assert [row["scaling_efficiency"] for row in tree.rows()] == [None, None]
