"""A result far outside those of the settings that train the same is a warning; ordinary noise is none."""

import math
import random
from functools import cache
from typing import Any

import pytest

from chain_runs import DIGITS, short_run
from relay.comparison.inputs import PlannedRun, RunResult
from relay.comparison.objections import outliers
from relay.comparison.setting_result import Goal, SettingResult, seconds_to, stated_accuracy
from results_tree import REFUSED, Tree, rows, shown
from summaries import summary_of

SPEEDS = [100.0, 101.0, 102.0]
USUAL = ([0.960, 0.964, 0.957], [0.962, 0.958, 0.966], [0.955, 0.961, 0.963])


def settings(tree: Tree, *accuracies: list[float], **changes: object) -> None:
    for place, own in enumerate(accuracies):
        tree.setting("ddp", SPEEDS[: len(own)], name=f"ddp-{place}", threads=place + 1, accuracies=own, **changes)


def warned(tree: Tree) -> dict[str, str]:
    return {row["setting"]: row["warning"] for row in tree.rows() if row["warning"]}


@pytest.mark.slow
def test_a_lower_accuracy_is_warned_of_wherever_the_answer_is(tree: Tree, capsys, monkeypatch) -> None:
    """As with torch's PowerSGD hook, which begins to compress long after the gate."""
    settings(tree, *USUAL, [0.925, 0.921, 0.929])
    told = warned(tree)
    assert list(told) == ["ddp-3"]
    assert told["ddp-3"].startswith("its test accuracy, 92.5 %, is far from that of the 3 others that train the same")
    assert tree.compare() == 0
    assert "Warning: its test accuracy, 92.5 %" in tree.html
    assert sum("92.5 %" in row["warning"] for row in rows(tree.root)) == 1
    assert "warning:" in shown(tree, capsys, monkeypatch)


def test_of_two_settings_neither_is_known_to_be_wrong(tree: Tree) -> None:
    settings(tree, [0.96, 0.961, 0.959, 0.96], [0.10, 0.11, 0.10, 0.10])
    assert set(warned(tree)) == {"ddp-0", "ddp-1"}


def test_no_number_is_far_from_all() -> None:
    alike = {"one": [0.96, 0.961], "other": [0.959, 0.962], "wrong": [math.nan, math.nan]}
    assert "wrong" in outliers({name: of_repeats(accuracies) for name, accuracies in alike.items()})


@pytest.mark.parametrize("repeats", [1, 3])
def test_noise_is_never_warned_of(repeats: int) -> None:
    """300 comparisons of six settings: seeds that move all settings alike, and as much noise of each run's own."""
    noise = random.Random(repeats)
    for comparison in range(300):
        by_seed = [noise.gauss(0.96, 0.008) for _ in range(repeats)]
        drawn = {f"setting-{place}": [seed + noise.gauss(0, 0.008) for seed in by_seed] for place in range(6)}
        assert outliers({name: of_repeats(values) for name, values in drawn.items()}) == {}, comparison


a_run = cache(lambda: short_run(DIGITS))


def of_repeats(accuracies: list[float]) -> list[RunResult]:
    of_run: dict[str, Any] = {
        "run": a_run(),
        "planned": PlannedRun(id="", gate="", segments=[1]),
        "error": "",
        "verdict": None,
    }
    return [RunResult(summary=summary_of(test_accuracy=each), **of_run) for each in accuracies]


# The time to a stated accuracy, and the curve that a setting is shown beside


def learnt(*accuracies: float) -> dict[str, Any]:
    """A summary's evaluations: one after each epoch of 22 steps."""
    steps = [{"step": 22 * epoch, "test_accuracy": value} for epoch, value in enumerate(accuracies, 1)]
    return {"evaluations": [each | {"test_loss": 0.1} for each in steps]}


def plotted(tree: Tree) -> dict[str, SettingResult]:
    return {each.row["setting"]: each for each in tree.settings()}


def test_the_time_is_that_of_a_job_up_to_the_first_evaluation_that_found_it(tree: Tree) -> None:
    """Its start takes 10 s, and the four epochs 0.75 s each beside their steps."""
    held = {"attempts": 1, "startup_seconds": 10.0, "train_seconds": 8.8, "allocated_seconds": 21.8}
    long = {"total_steps": 88, "epochs": 4.0}
    tree.setting("cpu", [640.0], name="one", summary=learnt(0.5, 0.91, 0.90, 0.95) | held, **long)
    repeat = plotted(tree)["one"].repeats[0]
    assert seconds_to(repeat, Goal("test_accuracy", 0.9)) == pytest.approx(11.5 + 44 * 64 / 640)
    assert seconds_to(repeat, Goal("test_accuracy", 0.95)) == pytest.approx(13 + 88 * 64 / 640)
    assert seconds_to(repeat, Goal("test_accuracy", 0.96)) is None


def test_the_accuracy_is_what_all_reach_unless_the_config_states_one(tree: Tree) -> None:
    tree.setting("cpu", [640.0], name="one", summary=learnt(0.5, 0.958))
    tree.setting("ddp", [640.0], name="two", devices_per_node=2, summary=learnt(0.934, 0.92))
    tree.setting("ddp", [640.0], name="wrong", devices_per_node=4, summary=learnt(0.1), verdict=REFUSED)
    settings = list(plotted(tree).values())
    assert stated_accuracy(settings, None) == 0.93
    assert stated_accuracy(settings, 0.95) == 0.95
