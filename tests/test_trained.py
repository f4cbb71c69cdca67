"""Other options of a task are another model or other data: each has an answer of its own, and no speed is compared."""

from __future__ import annotations

from typing import Any

import pytest

from relay.comparison import words
from relay.comparison.answer import Answer
from relay.comparison.decision import answers
from relay.comparison.inputs import read_inputs
from relay.comparison.table import comparison_rows
from results_tree import Tree

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
