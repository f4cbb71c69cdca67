"""The answer is right where the truth is planted: records as the stages write them, with a known winner."""

import json
import tomllib
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from plans import ROOT
from relay.comparison import answer_files, words
from relay.comparison.scaling import scaling_rows
from relay.comparison.words import Warned, warnings
from results_tree import LARGE, REFUSED, Tree, best, of, told

ON_GPU: dict[str, Any] = {"device": "cuda", "backend": "nccl"}


def test_a_known_winner_is_found_and_its_runner_up(tree: Tree) -> None:
    tree.setting("cpu", [900.0, 905.0, 895.0], name="second", cpus_per_task=2)
    tree.setting("cpu", [1000.0, 1004.0, 996.0], name="first", cpus_per_task=2, threads=2)
    tree.setting("cpu", [500.0, 502.0, 499.0], name="third", cpus_per_task=2, loader="dataloader")
    found = tree.answer()
    assert (best(found), found.certainty, found.repeats_to_tell) == ("first", "winner", None)
    assert found.runner_up.other.row["setting"] == "second"
    assert found.runner_up.ratio.value == pytest.approx(0.9, rel=1e-3)
    assert {each.relation for each in found.others} == {"slower"}
    hours = 44 * 64 / 1000 / 3600  # of the recommended training, on two cores
    assert (found.best.training_hours, found.best.spent) == pytest.approx((hours, 2 * hours), rel=1e-2)
    assert of(found, "third").other.spent == pytest.approx(4 * hours, rel=1e-2)
    assert words.told("certainty", found).startswith("Certain for these measurements: even at the edges of the 95 % ")
    assert words.told("why_not_the_fastest", found) == ""


def test_what_runs_out_of_memory_is_left_out_with_its_reason(tree: Tree) -> None:
    """One repeat of a fast setting failed: the others of it do not make it a candidate."""
    ids = tree.setting("ddp", [9000.0, 9001.0, 9002.0], devices_per_node=2)
    tree.fail(ids[2], "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    tree.setting("cpu", [1000.0, 1001.0, 1002.0], name="right")
    found = tree.answer(partial=True)
    assert best(found) == "right"
    assert (found.left_out[0].category, "out of memory" in found.left_out[0].reason) == ("failed", True)
    assert "ddp (2 procs, 1 thread, resident) gave no result. It might have been better" in told(found)
    tree.setting("cpu", [100.0, 101.0, 102.0], loader="dataloader")
    in_short = words.told("in_short", tree.answer(partial=True))
    assert in_short.startswith("It is certain for these measurements, in which ddp (2 procs, 1 thread, resident) gave ")


def test_what_is_too_short_to_be_timed_says_what_helps(tree: Tree) -> None:
    tree.setting("cpu", [None])
    assert "not timed: no step after the warm-up was measured: train longer." in words.told("certainty", tree.answer())


@pytest.mark.parametrize(
    ("fast", "slow", "warned"),
    [
        ([0.973, 0.974, 0.972], [0.990, 0.991, 0.989], True),  # 2.7 times as many errors
        ([0.930, 0.990, 0.965], [0.980, 0.985, 0.975], False),  # seeds are further apart
    ],
)
def test_what_learns_less_makes_more_errors_than_seeds_explain(tree: Tree, fast, slow, warned: bool) -> None:
    speeds = [1000.0, 1010.0, 990.0]
    tree.setting("cpu", [3 * speed for speed in speeds], name="fast", threads=2, accuracies=fast)
    tree.setting("cpu", speeds, name="slow", accuracies=slow)
    found = tree.answer()
    assert ("learns less" in told(found)) is warned
    assert ("learns more in as many epochs: a test accuracy of 99.0 %, not 97.3 %" in told(found)) is warned


def test_what_learns_nothing_is_no_result_where_others_with_its_seed_learn(tree: Tree) -> None:
    def curve(first: float, last: float) -> dict[str, Any]:
        return {"losses": {"steps": [1, 50, 100], "values": [first, last, last]}}

    tree.setting("cpu", [3 * speed for speed in STEADY], name="dead", threads=2, summary=curve(2.3, 2.31))
    tree.setting("cpu", STEADY, name="lives", summary=curve(2.31, 0.5))
    tree.setting("cpu", [0.5 * speed for speed in STEADY], loader="dataloader", summary=curve(2.31, 0.4))
    found = tree.answer()
    assert (best(found), found.certainty) == ("lives", "winner")
    ((category, reason),) = [(each.category, each.reason) for each in found.left_out]
    assert (category, "its training loss does not fall (2.30 at first, 2.31 at" in reason) == ("learns nothing", True)
    assert not found.lost
    assert [row["setting"] for row in tree.rows() if row["standing"] == "fastest"] == ["lives"]


def test_where_no_loss_falls_all_are_compared(tree: Tree) -> None:
    flat = {"losses": {"steps": [1, 50, 100], "values": [2.3, 2.31, 2.3]}}
    tree.setting("cpu", [3 * speed for speed in STEADY], name="fast", threads=2, summary=flat)
    tree.setting("cpu", STEADY, name="slow", summary=flat)
    assert best(tree.answer()) == "fast"
    falls = {"losses": {"steps": [1, 50, 100], "values": [2.2, 0.5, 0.4]}}  # of another model
    tree.setting("cpu", STEADY, task_options={"width": 9}, summary=falls)
    assert {row["status"] for row in tree.rows()} == {"done"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([(1, 2.3), (30, 2.29), (60, 2.28)], [(1, 2.3), (60, 2.27), (6000, 0.76)]),
        ([(1, 2.3), (50, 0.30), (100, 0.30)], [(1, 2.3), (50, 0.2), (100, 0.2)]),
        ([(1, 0.5), (50, 0.49), (100, 0.495)], [(1, 0.5), (50, 0.45), (100, 0.42)]),
    ],
    ids=["in fewer steps", "soon", "little"],
)
def test_what_learns_in_its_own_time_is_compared(tree: Tree, one, other) -> None:
    for threads, curve in enumerate((one, other), 1):
        losses = {"steps": [step for step, _ in curve], "values": [value for _, value in curve]}
        tree.setting("cpu", STEADY, threads=threads, summary={"losses": losses})
    assert {row["status"] for row in tree.rows()} == {"done"}


def test_different_batches_are_compared_by_the_time_to_the_accuracy_that_all_reach(tree: Tree) -> None:
    large = tree.setting("cpu", [3000.0, 3010.0, 2990.0], **LARGE, accuracies=[0.97, 0.971, 0.972])
    small = tree.setting("cpu", [1000.0, 1010.0, 990.0], accuracies=[0.975, 0.976, 0.974])
    for ids, reached in ((large, {3: 0.5, 5: 0.9, 6: 0.97}), (small, {10: 0.9, 12: 0.97, 44: 0.976})):
        evaluations = [{"step": step, "test_loss": 0.2, "test_accuracy": most} for step, most in reached.items()]
        tree.record(ids, evaluations=[evaluations] * 3)
    found = tree.answer()
    assert (best(found), found.certainty) == (small[0].removesuffix("-r0"), "winner")
    assert "is recommended as the first to reach a test accuracy of 97 %." in words.told("sentence", found)
    (other,) = found.others
    assert other.ratio.value == pytest.approx((12 * 64 / 1000) / (6 * 512 / 3000), rel=0.01)
    assert other.ratio.value / other.ratio.low > 1.2  # between two evaluations nobody knows
    assert other.ratio.high / other.ratio.value > 1.2
    for limit in ("deadline_hours", "budget"):  # that of the whole training: 2.8 s, though the goal takes 0.8 s
        tree.rules = {limit: 2 / 3600}
        found = tree.answer()
        assert (best(found), found.left_out[0].category) == (large[0].removesuffix("-r0"), "beyond a limit")


@pytest.mark.parametrize(
    ("accuracy", "why"),
    [(0.5, "not all of its repeats reach a test accuracy of 97.5 %"), (None, "it was never evaluated")],
)
def test_what_never_reaches_the_accuracy_is_left_out(tree: Tree, accuracy: float | None, why: str) -> None:
    tree.setting("cpu", STEADY, name="reaches", accuracies=[0.98] * 3)
    nothing = {} if accuracy else {"evaluations": [], "test_loss": None}
    tree.setting("cpu", STEADY, accuracies=[accuracy] * 3, summary=nothing, **LARGE)
    tree.more = {"config": {"target_accuracy": 0.975}}
    found = tree.answer()
    assert (best(found), found.certainty) == ("reaches", "alone")
    assert (found.left_out[0].category, why in found.left_out[0].reason) == ("goal not reached", True)
    assert why in told(found)


def test_files_of_two_trainings_have_two_names(tree: Tree) -> None:
    for place, width in enumerate((-1, 1, "x" * 300)):
        tree.setting("cpu", STEADY, name=f"{place}", task_options={"width": width})
    answers = tree.answers()
    assert len({each.script for each in answers}) == len({each.file_name for each in answers}) == 3
    assert max(len(each.file_name) for each in answers) == 60


def test_the_pairs_decide_where_a_slow_day_or_a_lost_round_has_changed_the_means(tree: Tree) -> None:
    """A setting that is added on a slow day is compared with that day's repeats, by table, answer and files alike."""
    days = ["2026-01-02T03:04:05+00:00"] * 3 + ["2026-01-09T03:04:05+00:00"] * 3
    old = tree.setting("cpu", [100.0, 101.0, 99.0, 50.0, 50.5, 49.5], name="old")
    new = tree.setting("cpu", [60.0, 60.6, 59.4], name="new", threads=2)
    tree.record(old, started_at=days)
    tree.record(new, started_at=days[3:])
    found = tree.answer()
    assert (best(found), found.certainty) == ("new", "winner")
    (other,) = found.others
    assert found.fastest is found.cheapest is found.best
    assert other.ratio.value == pytest.approx(50 / 60)
    in_files = answer_files.as_json(found, None)["others"][0]
    assert in_files["training_hours"] == pytest.approx(found.best.training_hours * 60 / 50)
    assert in_files["cost"] == pytest.approx(found.best.spent * 60 / 50)
    assert "The cheapest is" not in told(found)
    row = {row["setting"]: row for row in tree.rows()}
    assert list(row) == ["new", "old"]  # the fastest first
    assert (row["new"]["standing"], row["old"]["standing"]) == ("fastest", "slower")
    assert row["old"]["relative_speed"] == pytest.approx(50 / 60)


def test_efficiency_is_that_of_the_pairs_too(tree: Tree) -> None:
    steps = {"step_compute_fraction": 0.5, "step_communication_fraction": 0.5}
    tree.setting("ddp", [100.0, None, 100.0], name="one", launcher="torchrun", summary=steps)
    tree.setting("ddp", [150.0, 300.0, 150.0], name="two", devices_per_node=2)
    (row,) = [row for row in tree.rows() if row["setting"] == "two"]
    assert row["scaling_efficiency"] == pytest.approx(0.75)
    scaled = scaling_rows(tree.rows())
    assert [each["speed_up"] for each in scaled] == pytest.approx([1.0, 1.5])
    assert [each["speed"] for each in scaled] == pytest.approx([100.0, 150.0])
    assert [each["seconds_per_epoch"] for each in scaled] == pytest.approx([14.08, 14.08 / 1.5])


def test_what_makes_a_setting_slower_is_told_of_the_pairs(tree: Tree) -> None:
    """Beside each other, `two` is faster; by the means it is slower, because it has a slow repeat of its own."""
    for name, speeds, waits in (("one", [100.0, None, 100.0], 0.5), ("two", [200.0, 10.0, 200.0], 0.1)):
        steps = {"step_compute_fraction": 1 - waits, "step_data_fraction": waits}
        tree.setting("cpu", speeds, name=name, summary=steps, loader="dataloader" if name == "one" else "resident")
    found = tree.answer()
    one, two = of(found, "one").other, found.best
    slower = words.slower_by(two, one)
    assert (slower["name"], slower["whole_seconds"]) == ("data", pytest.approx(14.08 / 2))
    assert words.slower_by(one, two) is None


@pytest.mark.parametrize(
    ("speeds", "others", "certainty", "repeats"),
    [
        ([1000.0, 1001.0], [500.0, 501.0], "likely", 3),
        ([1000.0, 1001.0], [1000.5, 1000.0], "tie", 3),
        ([1000.0, 1001.0, 999.0, None], [None, 501.0, 500.0, 499.0], "likely", 5),  # of four, two are common
    ],
)
def test_two_repeats_that_are_alike_make_nothing_certain(tree: Tree, speeds, others, certainty, repeats: int) -> None:
    tree.setting("cpu", speeds, name="one")
    tree.setting("cpu", others, name="other", loader="dataloader")
    found = tree.answer()
    assert (best(found), found.certainty) == ("one", certainty)
    assert "were compared by two repeats only, which may be alike by chance. " in words.told("certainty", found)
    assert f"Set `repeats` to {repeats} or more." in words.told("certainty", found)


def test_repeats_that_no_other_was_measured_beside_are_not_advised_once_more(tree: Tree) -> None:
    """Each of the four rounds has one of the two: three common ones are there with seven."""
    tree.setting("cpu", [1000.0, 1001.0, None, None], name="one")
    tree.setting("cpu", [None, None, 500.0, 499.0], name="other", loader="dataloader")
    found = tree.answer()
    assert (found.certainty, found.repeats_to_tell) == ("unclear", 7)
    assert "Fewer than two repeats were measured beside each other" in words.told("certainty", found)
    assert {each.advice for each in warned(tree)} == {"set repeats: 5 or more"}


def test_with_one_repeat_nothing_is_sure(tree: Tree) -> None:
    tree.setting("cpu", [1000.0], name="one")
    tree.setting("cpu", [100.0], name="other", loader="dataloader")
    found = tree.answer()
    assert (best(found), found.certainty, found.repeats_to_tell) == ("one", "unclear", 3)
    assert words.told("certainty", found) == (
        "Not certain. With one repeat, nobody knows how much the speed varies. cpu (1 proc, 1 thread, dataloader) "
        "looks 0.10 times as fast over the whole training, starts included. It costs the same. 3 repeats of each would "
        "tell: set `repeats: 3`, and give the same command again. That takes about 1 min 02 s more."
    )
    tree.rules = {"epochs": 90.0}  # the repeats are no longer than before
    assert "That takes about 1 min 02 s more." in words.told("certainty", tree.answer())
    tree.rules = {}
    tree.setting("cpu", [1300.0], name="dear", cpus_per_task=2)
    pays = "Because it costs twice as much, I recommend it only if it is at least 1.40 times as fast."
    assert pays in words.told("certainty", tree.answer())


def test_the_gpus_of_all_nodes_are_paid_for(tree: Tree) -> None:
    """On two nodes it is 1.2 times as fast as on one."""
    for nodes, speed in ((1, 1000.0), (2, 1200.0)):
        speeds = [speed, 1.002 * speed, 0.998 * speed]
        tree.setting("ddp", speeds, name=f"nodes-{nodes}", nodes=nodes, devices_per_node=2, **ON_GPU)
    assert best(tree.answer()) == "nodes-1"


def test_what_pays_against_the_recommended_one_has_to_pay_against_cheaper_ones_too(tree: Tree) -> None:
    """Four GPUs are 1.5 times as fast as two, which pays, and 2.5 times as fast as one: of 2.8. No doubt is left."""
    for count, speed in ((1, 1000.0), (2, 1667.0), (4, 2500.0)):
        speeds = [speed, 1.002 * speed, 0.998 * speed]
        tree.setting("ddp", speeds, name=f"gpus-{count}", devices_per_node=count, **ON_GPU)
    found = tree.answer()
    assert (best(found), found.certainty, of(found, "gpus-4").relation) == ("gpus-2", "winner", "does not pay")
    assert of(found, "gpus-4").against.row["setting"] == "gpus-1"
    assert "More than 2 GPUs do not pay. ddp (4 GPUs, resident) trains" in told(found)
    assert "gave 62 % of the ideal 4-fold speed of ddp (1 GPU, resident). Your limit is 70 %" in told(found)
    assert "at least 1.68 times" not in told(found)


# Warnings with advice: each is given where its figure says so, with that figure, and not otherwise

STEADY = [1000.0, 1001.0, 999.0]


def warned(tree: Tree) -> list[Warned]:
    """The warnings, with the settings' ids in place of their names."""
    results = tree.settings()
    ids = {each.name: each.row["setting"] for each in results}
    return [replace(found, setting=ids[found.setting]) for found in warnings(results)]


def test_a_sound_comparison_has_no_warning(tree: Tree) -> None:
    ids = tree.setting("cpu", STEADY)
    for identity in ids:
        tree.give_job(identity, memory_mb=1200, minutes=5)
    assert warned(tree) == []


def test_each_warning_is_given_with_its_figure(tree: Tree) -> None:
    """Every row of the list: it is set off, and its words have their figures."""
    waiting = {"data_wait_fraction": 0.31}
    tree.setting("cpu", STEADY, name="x", loader="dataloader", data_workers=2, summary=waiting)
    tree.setting("cpu", STEADY, name="crowded", threads=2, summary={"threads_on_node": 8, "cpus_of_node": 4})
    tree.setting("cpu", [1000.0], name="once", threads=3)
    tree.setting("cpu", [1000.0, 1010.0, 700.0], name="odd", threads=4)
    for devices, speed in ((1, 1000.0), (8, 1500.0)):
        tree.setting("ddp", [speed] * 3, devices_per_node=devices, name=f"on-{devices}")
    idle = {"gpu_utilisation": 0.3, "step_idle_fraction": 0.4, "replayed_steps": 0, "not_captured": "shapes change"}
    for identity in tree.setting("single_gpu", STEADY, name="idle", summary=idle, **ON_GPU):
        tree.give_job(identity, memory_mb=64000, minutes=600)
    tree.setting("ddp", STEADY, name="unseen", devices_per_node=2, monitor_seconds=5.0, **ON_GPU)
    tree.record(tree.setting("cpu", STEADY, name="mixed", threads=5)[:1], versions=[{"torch": "2.12.0"}])
    told = {each.kind: (each.setting, each.figure, each.advice) for each in warned(tree)}
    assert list(told) == list(tomllib.loads((ROOT / "scripts/relay/comparison/warnings.toml").read_text()))
    for kind, setting, figure, advice in (
        ("look before you use it", "mixed", "torch 2.12.0, not 2.13.0", "docs/measurement.md"),
        ("too few repeats", "once", "1 repeat: no spread is known", "repeats: 3 or more"),
        ("noisy node", "odd", "repeat 3 ran at 0.70 times the speed of the others, on node1", "what else ran"),
        ("loader-bound", "x", "waits for data 31 % of", "data_workers (2 now)"),
        ("batch too small for so many devices", "on-8", "8 samples a step for each of 8 processes", "fewer devices"),
        ("oversubscribed CPUs", "crowded", "8 threads on 4 CPUs (1 core declared)", "processes × threads"),
        ("idle GPU", "idle", "busy 30 % of the time", "strategy mps"),
        ("GPUs not looked at", "unseen", "no figure of its GPUs", "nvidia-ml-py"),
        ("bound by launches", "idle", "in 40 % of a step", "compile: true; its steps are not captured as a CUDA graph"),
        ("memory asked for and not used", "idle", "64,000 MB of each node", "memory_mb_per_node"),
        ("time asked for and not used", "idle", "600 minutes, of which", "runtime_minutes"),
    ):
        assert told[kind][0] == setting
        assert figure in told[kind][1]
        assert advice in told[kind][2]


# `answer.json` keeps to its schema, which programs rely on, whatever the answer is.


SCHEMA = json.loads((ROOT / "workflow/schemas/answer.schema.json").read_text())


def test_a_winner_with_all_that_can_be_beside_it(tree: Tree) -> None:
    tree.setting("cpu", STEADY, cpus_per_task=4)
    tree.setting("single_gpu", [800.0, 802.0, 798.0], **ON_GPU)
    tree.setting("ddp", STEADY, devices_per_node=2, verdict=REFUSED)
    tree.setting("cpu", [None, None], name="short", threads=2)
    tree.setting("cpu", [250.0], name="slow", loader="dataloader")
    tree.dropped = {"slow": "after its first repeat: another was 4.0 times as fast, and costs no more"}
    (failed,) = tree.setting("cpu", [900.0], name="failed", channels_last=True)
    tree.fail(failed, "RuntimeError: out of memory")
    tree.skip("fsdp", "needs two devices")
    answer_files.write([tree.answer(partial=True)], tree.root, tree.margin)
    value = json.loads((tree.root / "answer.json").read_text(), parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    (told,) = value["answers"]
    assert ". " not in told["certainty_in_short"].removesuffix(".")  # one sentence
    assert told["certainty"] == "winner"
