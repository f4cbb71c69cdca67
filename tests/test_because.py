"""The answer says why a setting is slower, where observed steps show it, and says nothing where they do not."""

from __future__ import annotations

from typing import Any

from relay.comparison.answer import answers
from relay.comparison.answer_words import reasons, why_not_the_fastest
from relay.comparison.inputs import read_inputs
from relay.comparison.table import comparison_rows
from results_tree import Tree

pytest_plugins = ["results_tree"]

FAST, SLOW = [1000.0, 1001.0, 999.0], [500.0, 501.0, 499.0]
PARTS = ("data", "compute", "communication", "optimizer", "no_cpu", "idle")


def split(**shares: float) -> dict[str, Any]:
    return {f"step_{part}_fraction": shares.get(part, 0.0) for part in PARTS}


def told(tree: Tree, about: str) -> str:
    inputs = read_inputs(tree.write_plan(), tree.root)
    (answer,) = answers(inputs, comparison_rows(inputs))
    (line,) = [line for line in (why_not_the_fastest(answer), *reasons(answer)) if line.startswith(about)]
    return line


def test_the_runner_up_is_slower_because_of_one_part(tree: Tree) -> None:
    """An epoch has 22 steps of 64 samples: 1.408 s and 2.816 s. Communication takes 0.07 and 1.408 s of it."""
    tree.setting("cpu", FAST, summary=split(compute=0.95, communication=0.05))
    tree.setting("mps", SLOW, processes_per_device=2, summary=split(compute=0.5, communication=0.5))
    found = told(tree, "The next best is mps")
    assert "needs 1.4 s more. Most of that is communication that no computing hides: 50 % of its steps' time" in found
    assert found.endswith("5 % of the other's.")
    assert tree.compare() == 0
    assert "slower: communication that no computing hides: 50 % of its steps&#39; time</td>" in tree.html


def test_without_observed_steps_and_in_a_tie_nothing_is_said(tree: Tree) -> None:
    tree.setting("cpu", FAST, summary=split(compute=0.95, communication=0.05))
    tree.setting("mps", SLOW, processes_per_device=2)
    assert "steps' time" not in told(tree, "The next best is mps")
