"""The report's pictures stay readable: wide intervals, points that lie close together, and names of lines."""

from __future__ import annotations

import re

import pytest

from relay.comparison.inputs import read_inputs
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.pictures import axis_plot
from relay.comparison.plots import speed_plot
from relay.comparison.table import comparison_rows
from results_tree import Tree

pytest_plugins = ["results_tree"]


def results(tree: Tree) -> list[SettingResult]:
    inputs = read_inputs(tree.write_plan(), tree.root)
    return setting_results(inputs, comparison_rows(inputs))


def ticks(svg: str) -> list[float]:
    """The numbers on a picture's axes."""
    return [float(text.replace(",", "")) for text in re.findall(r">([\d,.]+)</text>", svg)]


@pytest.mark.parametrize("axis", [False, True])
def test_an_interval_that_reaches_far_does_not_squeeze_the_marks(tree: Tree, axis: bool) -> None:
    """Two repeats that differ by a factor of three have an interval up to a thousand times the mean."""
    tree.setting("cpu", [1000.0, 3000.0], name="one", cpus_per_task=1)
    tree.setting("cpu", [1100.0, 3300.0], name="two", cpus_per_task=2, threads=2)
    found = results(tree)
    assert found[0].row["samples_per_second_high"] > 1e6
    drawn = axis_plot(found, "cpus_per_task", "CPUs", "images", "x") if axis else speed_plot(found, "x")
    assert drawn is not None
    assert 1000 <= max(ticks(drawn)) <= 5000
