"""The comparison in words: numbers, headlines, and names of settings that tell them apart."""

from __future__ import annotations

import math

import pytest

from relay.comparison.wording import number, setting_labels
from results_tree import Tree

pytest_plugins = ["results_tree"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (20533.0, "20,500"), (999.9, "1,000"), (0.98765, "0.988"), (12.345, "12.3"), (0.0, "0"),
        (None, "–"), (math.nan, "not finite"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_that_mean_something(value: float | None, expected: str) -> None:
    assert number(value) == expected


def test_headline_names_the_fastest(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1001.0, 999.0], threads=2, accuracies=[0.96, 0.97, 0.98])
    tree.setting("cpu", [500.0, 501.0, 499.0], threads=1)
    told = tree.headline()
    assert told == "The fastest is cpu (1 proc, 2 threads, resident): 1,000 images/s."


def test_headline_admits_what_one_repeat_cannot_tell(tree: Tree) -> None:
    tree.setting("cpu", [1000.0])
    tree.setting("ddp", [500.0], devices_per_node=2)
    told = tree.headline()
    assert told.endswith(" Perhaps as fast: ddp (2 procs, 1 thread, resident) at 0.50 times the speed.")
    assert tree.compare() == 0
    assert "one repeat: no spread" in tree.html


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
