"""A result far outside those of the settings that train the same is a warning; ordinary noise is none."""

from __future__ import annotations

import csv
import math
import random

import pytest

from chain_runs import DIGITS, short_run
from relay.comparison.inputs import Record
from relay.comparison.outliers import outliers
from results_tree import Tree, shown

pytest_plugins = ["results_tree"]

RUN = short_run(DIGITS)
SPEEDS = [100.0, 101.0, 102.0]
USUAL = ([0.960, 0.964, 0.957], [0.962, 0.958, 0.966], [0.955, 0.961, 0.963])


def settings(tree: Tree, *accuracies: list[float], **changes: object) -> None:
    for place, own in enumerate(accuracies):
        tree.setting("ddp", SPEEDS[: len(own)], name=f"ddp-{place}", threads=place + 1, accuracies=own, **changes)


def warned(tree: Tree) -> dict[str, str]:
    return {row["setting"]: row["warning"] for row in tree.rows() if row["warning"]}


@pytest.mark.slow
def test_a_lower_accuracy_is_warned_of_wherever_the_answer_is(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with torch's PowerSGD hook, which begins to compress long after the gate."""
    settings(tree, *USUAL, [0.925, 0.921, 0.929])
    told = warned(tree)
    assert list(told) == ["ddp-3"]
    assert told["ddp-3"].startswith("its test accuracy, 92.5 %, is far from that of the 3 others that train the same")
    assert tree.compare() == 0
    assert "Warning: its test accuracy, 92.5 %" in tree.html
    with (tree.root / "comparison.csv").open(newline="") as stream:
        assert sum("92.5 %" in row["warning"] for row in csv.DictReader(stream)) == 1
    assert "warning:" in shown(tree, capsys, monkeypatch)


def test_of_two_settings_neither_is_known_to_be_wrong(tree: Tree) -> None:
    settings(tree, [0.96, 0.961, 0.959, 0.96], [0.10, 0.11, 0.10, 0.10])
    assert set(warned(tree)) == {"ddp-0", "ddp-1"}


def test_no_number_is_far_from_all() -> None:
    alike = {"one": records([0.96, 0.961]), "other": records([0.959, 0.962]), "wrong": records([math.nan, math.nan])}
    assert "wrong" in outliers(alike)


def test_other_batches_and_learning_rates_are_no_peers(tree: Tree) -> None:
    settings(tree, *USUAL)
    tree.setting("cpu", SPEEDS, accuracies=[0.7, 0.71, 0.7], global_batch_size=512)
    assert warned(tree) == {}


def test_what_is_struck_out_warns_of_nothing(tree: Tree) -> None:
    settings(tree, *USUAL)
    refused = {"equivalent": False, "problems": ["as planted"]}
    tree.setting("cpu", SPEEDS, accuracies=[0.1, 0.1, 0.1], verdict=refused)
    assert warned(tree) == {}


@pytest.mark.parametrize("repeats", [1, 3])
def test_noise_is_never_warned_of(repeats: int) -> None:
    """300 comparisons of six settings: seeds that move all settings alike, and as much noise of each run's own."""
    noise = random.Random(repeats)
    for comparison in range(300):
        by_seed = [noise.gauss(0.96, 0.008) for _ in range(repeats)]
        drawn = {f"setting-{place}": [seed + noise.gauss(0, 0.008) for seed in by_seed] for place in range(6)}
        assert outliers({name: records(values) for name, values in drawn.items()}) == {}, comparison


def records(accuracies: list[float]) -> list[Record]:
    return [
        Record(run=RUN, gate="", segments=1, summary={"test_accuracy": accuracy}, error="", verdict=None)
        for accuracy in accuracies
    ]
