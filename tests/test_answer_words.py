"""The answer in words: what to do about a tie, a doubt, a GPU, and a longer training."""

from __future__ import annotations

from typing import Any

import pytest

from results_tree import Tree
from test_answer import answer_of, told

pytest_plugins = ["results_tree"]
STEADY = [1000.0, 1002.0, 998.0]


def times(factor: float) -> list[float]:
    return [factor * speed for speed in STEADY]


@pytest.mark.parametrize(("losses", "warned"), [((2.0, 1.5), True), ((2.0, 1.9), False)])
def test_without_classes_the_loss_tells_what_is_learnt(tree: Tree, losses: tuple[float, float], warned: bool) -> None:
    nothing: dict[str, Any] = {"task": "linear-random10", "accuracies": [None] * 3}
    tree.setting("cpu", times(3), loader="dataloader", summary={"test_loss": losses[0]}, **nothing)
    tree.setting("cpu", STEADY, summary={"test_loss": losses[1]}, **nothing)
    assert ("It learns less in these epochs: " in told(answer_of(tree))) is warned
