"""The answer in words: what to do about a tie, a doubt, a GPU, and a longer training."""

from __future__ import annotations

from typing import Any

import pytest

from relay.comparison import answer_words as words
from relay.comparison.page_words import how_long
from results_tree import Tree
from test_answer import ON_GPU, answer_of, told

pytest_plugins = ["results_tree"]
STEADY = [1000.0, 1002.0, 998.0]


def times(factor: float) -> list[float]:
    return [factor * speed for speed in STEADY]


def test_a_tie_that_holds_more_is_not_left_to_the_queue(tree: Tree) -> None:
    tree.setting("cpu", STEADY)
    tree.setting("cpu", STEADY, cpus_per_task=2, threads=2)
    found = words.certainty(answer_of(tree))
    assert "equally fast" in found
    assert found.endswith("It costs more, and nothing is gained: take the recommended one.")
    tree.setting("cpu", STEADY, loader="dataloader")
    found = words.certainty(answer_of(tree))
    assert found.endswith("costs the same as the recommended one. Of these, take what your queue gives first.")


def test_doubts_are_told_apart(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1010.0, 990.0])
    tree.setting("cpu", [1350.0, 1415.0, 1415.0], cpus_per_task=2, threads=2)
    tree.setting("ddp", [1350.0, 1415.0, 1415.0], devices_per_node=2)
    found = words.certainty(answer_of(tree))
    assert found.startswith(
        "Not certain. cpu (1 proc, 2 threads, resident) looks 1.39 times as fast (between 1.26 and 1.55) and ddp (2 "
        "procs, 1 thread, resident) 1.39 times (between 1.26 and 1.55). Because they cost twice as much, I recommend "
        "them only if they are at least 1.40 times as fast. "
    )


def test_an_uncertain_gpu_is_not_refused_with_certainty(tree: Tree) -> None:
    tree.setting("cpu", STEADY, cpus_per_task=4)
    tree.setting("single_gpu", [1900.0, 2400.0, 1700.0], **ON_GPU)
    found = answer_of(tree)
    assert found.certainty == "unclear"
    assert "A GPU is worth it where an hour of it costs less than 11 hours of a CPU core" in told(found)


@pytest.mark.parametrize(("losses", "warned"), [((2.0, 1.5), True), ((2.0, 1.9), False)])
def test_without_classes_the_loss_tells_what_is_learnt(tree: Tree, losses: tuple[float, float], warned: bool) -> None:
    nothing: dict[str, Any] = {"task": "linear-random10", "accuracies": [None] * 3}
    tree.setting("cpu", times(3), loader="dataloader", summary={"test_loss": losses[0]}, **nothing)
    tree.setting("cpu", STEADY, summary={"test_loss": losses[1]}, **nothing)
    assert ("It learns less in these epochs: " in told(answer_of(tree))) is warned


def test_a_longer_training_is_asked_for_as_the_answer_is(tree: Tree) -> None:
    """As a chain of jobs where it is longer than one may be."""
    long = {"train_seconds": 3000.0, "allocated_seconds": 3020.0, "attempts": 2}
    for identity in tree.setting("cpu", STEADY, summary=long):
        tree.give_job(identity, memory_mb=1200, minutes=20)
    found = answer_of(tree)
    asked = how_long(found)
    assert asked
    assert found.request
    first = asked.rows[0][3]
    assert first == f"{found.request.jobs} jobs of 20 minutes"
    assert words.sentence(found).endswith(f", in {first}.")
    assert asked.rows[1][3] == f"{found.request_of(10).jobs} jobs of 20 minutes"  # type: ignore[union-attr]
