"""The answer for a whole training, within limits and prices, is right where the truth is planted."""

from typing import Any

import pytest

from relay.comparison import words
from relay.comparison.answer_files import recommendation
from results_tree import LARGE, Tree, best, of, told

ON_GPU: dict[str, Any] = {"device": "cuda", "backend": "nccl"}
STEADY = [1000.0, 1001.0, 999.0]

SLOW_TO_START = {"attempts": 1, "startup_seconds": 600.0, "loading_seconds": 0.0, "allocated_seconds": 612.0}
QUICK_TO_START = {"attempts": 1, "startup_seconds": 9.0, "loading_seconds": 0.0, "allocated_seconds": 22.2}


def test_the_answer_is_for_so_many_epochs_as_are_asked_for(tree: Tree) -> None:
    """An epoch of 22 steps takes 12.8 s, or 14.08 s: 591 s of a start are made up for by 462 epochs."""
    tree.setting("cpu", [110.0, 110.2, 109.8], name="slow", threads=2, summary=SLOW_TO_START | {"train_seconds": 12.0})
    tree.setting("cpu", [100.0, 100.2, 99.8], name="quick", summary=QUICK_TO_START | {"train_seconds": 13.2})
    for epochs, wanted in ((400, "quick"), (600, "slow")):
        tree.rules = {"epochs": epochs}
        answer = tree.answer()
        assert best(answer) == wanted
        assert f"for {epochs} epochs, " in answer.request.time_why
        assert words.told("sentence", answer).startswith(f"For {epochs} epochs of lenet-digits, cpu (")
        found = recommendation(answer, tree.root)
        assert (found.run.length.epochs, found.run.length.total_steps) == (epochs, 22 * epochs)


def test_a_repeat_on_a_slow_day_changes_no_number_of_epochs(tree: Tree) -> None:
    """As before, with a repeat of the slow starter that none was measured beside."""
    slow = tree.setting("cpu", [110.0, 110.2, 109.8, 20.0], name="slow", threads=2, summary=SLOW_TO_START)
    tree.record(slow, train_seconds=[12.0] * 4, allocated_seconds=[612.0] * 3 + [2000.0])
    tree.setting("cpu", [100.0, 100.2, 99.8, None], name="quick", summary=QUICK_TO_START | {"train_seconds": 13.2})
    assert "For more than 460 epochs, cpu (1 proc, 2 threads, resident) would end first" in told(tree.answer())


def test_a_setting_near_a_limit_makes_the_answer_uncertain_on_either_side_of_it(tree: Tree) -> None:
    """By itself the cheaper one takes 1.05 hours. Its third repeat was on a slow day, as was that of the other."""
    seconds = 44 * 64 / 3600
    tree.setting("cpu", [seconds, 1.001 * seconds, 0.86 * seconds], name="one")
    tree.setting("ddp", [2 * seconds, 2.002 * seconds, None], name="two", devices_per_node=2)
    tree.rules = {"deadline_hours": 1.01}
    found = tree.answer()
    assert (best(found), found.certainty) == ("two", "alone")
    assert "cpu (1 proc, 1 thread, resident) may take 0.8" in words.told("certainty", found)
    assert " h, of 1.01." in words.told("certainty", found)


@pytest.mark.parametrize(
    ("limits", "wanted", "why"),
    [
        ({}, "two", "is recommended. "),
        ({"deadline_hours": 1.0}, "one", "is recommended as the cheapest within 1 h. "),
        ({"deadline_hours": 11 / 3600}, "four", "is recommended as the cheapest within 0.00305556 h. "),
        ({"budget": 1.0}, "four", "is recommended as the fastest within 1 core-hours. "),
        ({"budget": 35 / 3600}, "two", "is recommended as the fastest within 0.00972222 core-hours. "),
        ({"budget": 35 / 36000, "price": {"cpu_hour": 0.1}}, "two", "as the fastest within 0.000972222 EUR. "),
        ({"deadline_hours": 1 / 3600}, "none", "no setting keeps to the limits."),
    ],
)
def test_a_deadline_asks_for_the_cheapest_and_a_budget_for_the_fastest(tree: Tree, limits, wanted, why) -> None:
    """One core takes 28 s, two take 17 s (35 core-seconds) and four 10.4 s (42)."""
    for name, count, speed in (("one", 1, 100.0), ("two", 2, 162.0), ("four", 4, 270.0)):
        speeds = [speed, 1.002 * speed, 0.998 * speed, speed, speed]
        tree.setting("cpu" if count == 1 else "ddp", speeds, name=name, devices_per_node=count)
    tree.rules = limits
    answer = tree.answer()
    assert (best(answer) if answer.best else "none") == wanted
    assert why in words.told("sentence", answer)
    if wanted == "none":
        assert "beyond a limit: it takes 0.00782 h, of 0.00027" in words.told("certainty", answer)


def test_what_a_limit_leaves_out_was_measured(tree: Tree) -> None:
    """One repeat may have been a disturbed one, so that the setting may keep to the limit."""
    tree.setting("cpu", [100.0], name="one")
    tree.setting("ddp", [170.0], name="two", devices_per_node=2)
    tree.rules = {"deadline_hours": 27 / 3600}
    said = told(tree.answer())
    assert "cpu (1 proc, 1 thread, resident) is left out: it takes 0.00782 h, of 0.0075 h" in said
    assert "is left out, and nothing else is left to compare it with" in said
    assert "may take 0.00652 to 0.00939 h, of 0.0075" in said
    assert "were measured" not in said


def test_what_a_limit_asks_for_is_told_beside_what_it_left_out(tree: Tree) -> None:
    """Four cores are 1.67 times as fast as two, which would pay without a deadline."""
    for name, count, speed in (("one", 1, 100.0), ("two", 2, 162.0), ("four", 4, 270.0)):
        speeds = [speed, 1.002 * speed, 0.998 * speed]
        tree.setting("cpu" if count == 1 else "ddp", speeds, name=name, devices_per_node=count)
    tree.rules = {"deadline_hours": 20 / 3600}
    assert "Your limit is 100 % (`answer.deadline_hours`: the cheapest is asked for), so 2" in told(tree.answer())


def test_the_limit_is_told_only_of_what_it_leaves_out(tree: Tree) -> None:
    """Four cores are slower than two, and cost the same where whole nodes are charged."""
    tree.setting("ddp", STEADY, devices_per_node=2)
    tree.setting("ddp", [0.9 * speed for speed in STEADY], devices_per_node=4)
    tree.rules = {"budget": 1.0}
    assert "of the ideal double speed. Not measured on GPUs" in told(tree.answer())
    tree.rules = {"epochs": 1.0}
    for run in tree.runs:
        run["taken"] = {"cpus": 48, "gpus": 0}
    said = told(tree.answer())
    assert "(between 0.89 and 0.91). Not measured on GPUs" in said
    assert said.startswith("For 1 epoch of lenet-digits, ")


def test_the_price_at_which_a_gpu_pays_is_that_of_the_first_setting_that_does(tree: Tree) -> None:
    """One GPU is 9 times as fast as a core, and two are 15 times: from 9 / 0.7 hours of a core on, none pays."""
    tree.setting("cpu", STEADY, name="core")
    tree.setting("single_gpu", [9 * speed for speed in STEADY], **ON_GPU)
    tree.setting("ddp", [15 * speed for speed in STEADY], devices_per_node=2, **ON_GPU)
    for cores, wanted in ((12.8, "single_gpu-3"), (12.9, "core")):
        tree.rules = {"cores_per_gpu": cores}
        found = tree.answer()
        assert (best(found), found.turning_price) == (wanted, pytest.approx(9 / 0.7))


@pytest.mark.parametrize(("times", "turns"), [(1.02, 1.0), (0.98, 1.0), (0.9, 0.63)])
def test_a_gpu_that_is_as_fast_as_a_core_pays_if_it_is_cheaper(tree: Tree, times: float, turns: float) -> None:
    tree.setting("cpu", STEADY, name="core")
    tree.setting("single_gpu", [times * speed for speed in STEADY], name="gpu", **ON_GPU)
    for cores, wanted in ((turns - 0.01, "gpu"), (turns + 0.01, "core")):
        tree.rules = {"cores_per_gpu": cores, "price": {"cpu_hour": 1.0, "gpu_hour": cores}}
        answer = tree.answer()
        assert (best(answer), answer.turning_price) == (wanted, pytest.approx(turns))


def test_what_is_unclear_is_held_against_what_it_is_most_likely_not_to_pay_against(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 100.0, 5000.0], name="one")
    tree.setting("ddp", [900.0, 9000.0, 30.0], name="two", devices_per_node=2)
    tree.setting("cpu", [3.0, 300.0, 9.0], name="slow", threads=2)
    found = tree.answer()
    assert best(found) == "one"
    assert of(found, "two").against is found.best
    assert found.turns_at(of(found, "two")) == pytest.approx(1.4)


def test_more_repeats_are_not_advised_where_evaluations_are_too_far_apart(tree: Tree) -> None:
    """Each reaches the accuracy at its first evaluation, before which all is possible."""
    tree.setting("cpu", [3000.0, 3030.0, 2970.0], **LARGE)
    tree.setting("cpu", [1000.0, 1010.0, 990.0])
    found = tree.answer()
    assert (found.certainty, found.repeats_to_tell) == ("unclear", None)
    assert "lower `evaluate_every_epochs`" in words.told("certainty", found)


def test_whole_nodes_and_prices_are_what_is_charged(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1002.0, 998.0], name="one")
    tree.setting("single_gpu", [9000.0, 9002.0, 8998.0], name="gpu", **ON_GPU)
    tree.rules = {"price": {"gpu_hour": 2.0, "cpu_hour": 0.1}}
    assert sorted(each.cost for each in tree.answer().candidates) == pytest.approx([1, 20])
    for run in tree.runs:
        run["taken"] = {"cpus": 48, "gpus": 4 if run["setting"] == "gpu" else 0}
    assert tree.answer().turning_price == pytest.approx(9 * 48 / 4 / 0.7, rel=1e-3)
    assert sorted(each.cost for each in tree.answer().candidates) == pytest.approx([48, 80])
    tree.rules = {"price": {"gpu_hour": 2.0}}
    assert tree.answer().rules.currency == "core-hours"  # nobody knows what the CPUs cost
    tree.runs = [run for run in tree.runs if run["setting"] == "gpu"]
    (gpu,) = (alone := tree.answer()).candidates
    assert (alone.rules.currency, gpu.spent) == ("EUR", pytest.approx(8 * gpu.training_hours))


def test_the_repeat_that_decides_is_named_with_the_command_that_measures_it_again(tree: Tree) -> None:
    ids = tree.setting("cpu", [1200.0, 1210.0, 400.0], name="best")
    tree.setting("cpu", [1000.0, 1010.0, 990.0], name="other", loader="dataloader")
    answer = tree.answer()
    assert best(answer) == "other"
    certainty = words.told("certainty", answer)
    assert "Without repeat 3 of cpu (1 proc, 1 thread, resident), which is far from its others, cpu (1 " in certainty
    assert f" would be recommended. Measure it again: `rm -r results/runs/{ids[2]}`" in certainty
