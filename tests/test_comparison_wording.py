"""The comparison in words: numbers, headlines, and names of settings that tell them apart."""

from __future__ import annotations

from relay.comparison.wording import setting_labels
from results_tree import Tree

pytest_plugins = ["results_tree"]


def test_settings_that_look_alike_are_told_apart(tree: Tree) -> None:
    tree.setting("ddp", [100.0, 101.0], devices_per_node=2, global_batch_size=64)
    tree.setting("ddp", [200.0, 201.0], devices_per_node=2, global_batch_size=128)
    tree.setting("ddp", [300.0, 301.0], devices_per_node=2, global_batch_size=128, cpus_per_task=2)
    tree.setting("ddp", [400.0, 401.0], devices_per_node=2, global_batch_size=128, warmup_steps=5)
    labels = setting_labels(tree.rows())
    assert len(set(labels)) == 4
    assert labels[-1] == "2 procs, 1 thread, resident, batch 64"
    assert labels[-2] == "2 procs, 1 thread, resident, batch 128, 1 CPU, ddp-2"
    assert labels[1] == "2 procs, 1 thread, resident, batch 128, 2 CPUs"
