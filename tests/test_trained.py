"""Other options of a task are another model or other data: each has an answer of its own, and no speed is compared."""

from __future__ import annotations

from typing import Any

import pytest

from relay.comparison import answer_words as words
from relay.comparison.answer import Answer, answers
from relay.comparison.grid import grids
from relay.comparison.inputs import read_inputs
from relay.comparison.scaling import markdown, scaling_rows
from relay.comparison.table import comparison_rows
from relay.planning.dropping import clearly_slower
from results_tree import Tree
from test_dropping import first

pytest_plugins = ["results_tree"]

NARROW: dict[str, Any] = {"task_options": {"width": 4}, "metrics": ("dice",)}
WIDE: dict[str, Any] = {"task_options": {"width": 8}, "metrics": ("dice",)}


def learnt(dice: float, loss: float) -> dict[str, Any]:
    """What a run's summary says of a segmentation."""
    evaluation = {"step": 22, "test_loss": loss, "test_accuracy": None, "test_metrics": {"dice": dice}}
    return {"test_accuracy": None, "test_metric": dice, "test_loss": loss, "evaluations": [evaluation]}


@pytest.fixture
def widths(tree: Tree) -> Tree:
    """One process trains the narrow network, two processes the wide one."""
    for width, (dice, loss), strategy, devices, speed in (
        (NARROW, (0.287, 0.7), "cpu", 1, 1000.0),
        (WIDE, (0.889, 0.1), "ddp", 2, 760.0),
    ):
        tree.setting(
            strategy, [speed, 1.01 * speed, 0.99 * speed], summary=learnt(dice, loss), devices_per_node=devices, **width
        )
    return tree


def found(tree: Tree) -> list[Answer]:
    inputs = read_inputs(tree.write_plan(), tree.root)
    return answers(inputs, comparison_rows(inputs))


def test_each_has_an_answer_and_what_has_learnt_most_comes_first(widths: Tree) -> None:
    wide, narrow = found(widths)
    assert [wide.trained, narrow.trained] == ["lenet-digits (width=8)", "lenet-digits (width=4)"]
    assert (wide.certainty, narrow.certainty) == ("alone", "alone")
    assert words.sentence(wide).startswith(
        "For lenet-digits (width=8), ddp (2 procs, 1 thread, resident, width=8) is recommended. "
        "Its test dice is 0.889. Ask Slurm for 1 node with 2 CPUs"
    )
    assert "Its test dice is 0.287." in words.sentence(narrow)
    for answer in (wide, narrow):
        told = " ".join([words.sentence(answer), words.certainty(answer), *words.reasons(answer)])
        assert "speed does not compare them" in told
        assert "may not pay" not in told
        assert "ideal double" not in told
        assert "times as fast" not in told


def test_no_row_stands_beside_one_of_another_model(widths: Tree) -> None:
    rows = widths.rows()
    assert [row["trained"] for row in rows] == ["lenet-digits (width=4)", "lenet-digits (width=8)"]
    assert [(row["standing"], row["relative_speed"]) for row in rows] == [("fastest", 1.0)] * 2
    assert [row["scaling_efficiency"] for row in rows] == [None, None]


def test_a_table_of_scaling_is_of_one_model(tree: Tree) -> None:
    for width, factor in ((NARROW, 1.0), (WIDE, 0.3)):
        for batch in (32, 64):
            for devices in (1, 2, 4):
                speed = factor * batch * devices
                tree.setting(
                    "ddp", [speed, speed], devices_per_node=devices, global_batch_size=batch * devices, **width
                )
    rows = tree.rows()
    assert [grid.trained for grid in grids(rows)] == ["lenet-digits (width=4)", "lenet-digits (width=8)"]
    text = markdown(scaling_rows(rows), grids(rows))
    assert "## lenet-digits (width=4): weak scaling" in text
    assert "## lenet-digits (width=8): weak scaling" in text
    assert [row["scaling_efficiency"] for row in rows if row["scaling"] == "weak"] == pytest.approx([1.0] * 4)


def test_a_slower_model_is_not_dropped_for_a_smaller_one() -> None:
    small, large = ("t", "width=4"), ("t", "width=8")
    assert clearly_slower([first("small", 900.0, trains=small), first("large", 100.0, trains=large)], 2.0) == {}
    assert "large" in clearly_slower([first("small", 900.0, trains=large), first("large", 100.0, trains=large)], 2.0)
