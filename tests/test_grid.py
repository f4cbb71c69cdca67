"""The table of speed per device by batch and number of devices, as computing centres publish it."""

from __future__ import annotations

import pytest

from relay.comparison.grid import grids
from results_tree import REFUSED, Tree

pytest_plugins = ["results_tree"]


def measured(tree: Tree, strategy: str, nodes: int, devices: int, batch: int, speed: float, **more: object) -> None:
    tree.setting(
        strategy, [speed, speed], name=f"{strategy}-{nodes}-{devices}-{batch}", nodes=nodes, devices_per_node=devices,
        device="cuda", global_batch_size=batch * nodes * devices, **more,
    )  # fmt: skip


@pytest.mark.slow
def test_it_has_the_form_of_the_alliances_table(tree: Tree) -> None:
    for batch in (32, 64):
        measured(tree, "single_gpu", 1, 1, batch, 500.0 + batch)
        measured(tree, "ddp", 1, 2, batch, 400.0 + batch)
        measured(tree, "ddp", 2, 2, batch, 600.0 + batch)
    measured(tree, "ddp", 3, 2, 32, 900.0)
    (grid,) = grids(tree.rows())
    assert grid.heading == "lenet-digits, ddp: images per second and GPU (AMD EPYC)"
    assert grid.columns == ["batch of a GPU", "1 node, 1 GPU", "1 node, 2 GPUs", "2 nodes, 4 GPUs", "3 nodes, 6 GPUs"]
    assert grid.rows == [["32", "532", "216", "158", "150"], ["64", "564", "232", "166", "–"]]
    assert tree.compare() == 0
    text = (tree.root / "scaling.md").read_text()
    assert "|               32 |" in text or "| 32 " in text
    assert "images per second and GPU" in tree.html


def test_what_is_struck_out_or_computes_otherwise_is_in_no_cell(tree: Tree) -> None:
    for batch in (32, 64):
        measured(tree, "ddp", 1, 2, batch, 400.0)
        measured(tree, "ddp", 1, 4, batch, 900.0, verdict=REFUSED)
    measured(tree, "single_gpu", 1, 1, 32, 500.0, precision="bf16")
    assert grids(tree.rows()) == []
