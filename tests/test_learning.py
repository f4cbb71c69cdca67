"""The time to a stated accuracy, and the curve that a setting is shown beside."""

from __future__ import annotations

from typing import Any

import pytest

from relay.comparison.inputs import read_inputs
from relay.comparison.learning import behind
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.quality import Goal, seconds_to, stated_accuracy
from relay.comparison.table import comparison_rows
from results_tree import REFUSED, Tree

pytest_plugins = ["results_tree"]


def learnt(*accuracies: float) -> dict[str, Any]:
    """A summary's evaluations: one after each epoch of 22 steps."""
    return {
        "evaluations": [
            {"step": 22 * epoch, "test_loss": 0.1, "test_accuracy": value} for epoch, value in enumerate(accuracies, 1)
        ]
    }


def plotted(tree: Tree) -> dict[str, SettingResult]:
    inputs = read_inputs(tree.write_plan(), tree.root)
    return {each.row["setting"]: each for each in setting_results(inputs, comparison_rows(inputs))}


def test_the_time_is_that_of_a_job_up_to_the_first_evaluation_that_found_it(tree: Tree) -> None:
    """Its start takes 10 s, and the four epochs 0.75 s each beside their steps."""
    held = {"attempts": 1, "startup_seconds": 10.0, "train_seconds": 8.8, "allocated_seconds": 21.8}
    long = {"total_steps": 88, "epochs": 4.0}
    tree.setting("cpu", [640.0], name="one", summary=learnt(0.5, 0.91, 0.90, 0.95) | held, **long)
    record = plotted(tree)["one"].records[0]
    assert seconds_to(record, Goal("test_accuracy", 0.9)) == pytest.approx(11.5 + 44 * 64 / 640)
    assert seconds_to(record, Goal("test_accuracy", 0.95)) == pytest.approx(13 + 88 * 64 / 640)
    assert seconds_to(record, Goal("test_accuracy", 0.96)) is None


def test_the_accuracy_is_what_all_reach_unless_the_config_states_one(tree: Tree) -> None:
    tree.setting("cpu", [640.0], name="one", summary=learnt(0.5, 0.958))
    tree.setting("ddp", [640.0], name="two", devices_per_node=2, summary=learnt(0.934, 0.92))
    tree.setting("ddp", [640.0], name="wrong", devices_per_node=4, summary=learnt(0.1), verdict=REFUSED)
    settings = list(plotted(tree).values())
    assert stated_accuracy(settings, None) == 0.93
    assert stated_accuracy(settings, 0.95) == 0.95


def test_the_curve_behind_is_the_same_training_in_one_process(tree: Tree) -> None:
    tree.setting("ddp", [900.0], name="fast", devices_per_node=2)
    tree.setting("cpu", [500.0], name="plain")
    tree.setting("cpu", [400.0], name="lower", precision="bf16")
    tree.setting("ddp", [300.0], name="large", devices_per_node=2, global_batch_size=128)
    settings = plotted(tree)
    beside = {name: behind(each, list(settings.values())) for name, each in settings.items()}
    assert beside["fast"] is beside["lower"] is settings["plain"]
    assert beside["plain"] is None
    assert beside["large"] is None  # nothing else takes its steps
