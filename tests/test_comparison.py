"""The comparison's tables: from the files that runs and gates leave behind to a row of each setting."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results_tree import REFUSED, Tree, shown


def test_columns_and_pooled_figures(tree: Tree) -> None:
    ids = tree.setting("ddp", [100.0, 110.0, 121.0], accuracies=[0.9, 0.92, 0.97], devices_per_node=2, threads=1)
    tree.record(ids, allocated_seconds=[10.0, 20.0, 30.0])
    assert tree.compare() == 0
    with (tree.root / "comparison.csv").open(newline="") as stream:
        raw = list(csv.DictReader(stream))
    assert raw[0]["equivalent"] == "true"
    row = tree.row("ddp")
    assert row["samples_per_second"] == pytest.approx(110)  # the geometric mean: 110 / 1.1, 110, 110 × 1.1
    from scipy import stats  # which takes a second

    half = stats.t.ppf(0.975, 2) * math.log(1.1) / math.sqrt(3)
    assert row["samples_per_second_low"] == pytest.approx(110 * math.exp(-half))
    assert row["samples_per_second_high"] == pytest.approx(110 * math.exp(half))
    assert row["samples_per_second_per_device"] == pytest.approx(55)
    assert (row["unit"], row["units_per_sample"]) == ("images", 1)
    assert (row["world_size"], row["repeats"], row["segments"], row["status"]) == (2, 3, 2, "done")
    assert row["test_accuracy"] == pytest.approx(0.93)
    assert row["peak_memory_bytes"] == 1002
    assert row["goodput"] == pytest.approx((0.5 * 10 + 0.6 * 20 + 0.7 * 30) / 60)
    assert (row["standing"], row["relative_speed"], row["reason"]) == ("fastest", 1.0, None)
    assert row["scaling_efficiency"] is None


def test_best_tie_slower_and_unclear(tree: Tree) -> None:
    fast = [1000.0, 1001.0, 999.0]
    tree.setting("cpu", fast, name="best")
    tree.setting("cpu", [995.0, 996.0, 994.0], name="close", threads=2)
    tree.setting("cpu", [500.0, 510.0, 490.0], name="half", threads=3)
    tree.setting("cpu", [900.0, 1050.0, 980.0], name="noisy", threads=4)
    rows = {row["setting"]: row for row in tree.rows()}
    assert {name: row["standing"] for name, row in rows.items()} == {
        "best": "fastest", "close": "tie", "half": "slower", "noisy": "unclear",
    }  # fmt: skip
    from scipy import stats

    interval = stats.ttest_rel(np.log([500, 510, 490]), np.log(fast)).confidence_interval(1 - 0.05 / 3)
    half = rows["half"]
    assert half["relative_speed_low"] == pytest.approx(math.exp(interval.low))
    assert half["relative_speed_high"] == pytest.approx(math.exp(interval.high))


def test_a_verdict_of_other_code_is_not_shown_as_the_runs(tree: Tree) -> None:
    """Neither of a run that is done nor of one that failed; repeats that ran the code gated are not named."""
    ids = tree.setting("ddp", [9000.0, 9000.0], devices_per_node=2)
    tree.fail(ids[1], "no memory")
    chain = {"generation": "first", "code": "edited", "strategy_source": "edited", "attempts": []}
    tree.write(f"checkpoints/{ids[1]}/chain.json", chain)
    row = tree.row("ddp", partial=True)
    assert (row["status"], row["equivalent"], row["max_loss_difference"]) == ("failed", False, None)
    assert row["reason"] == "repeat 2: the code gated is not the code that ran; repeat 2: no memory"
    assert tree.compare("--partial") == 0
    assert "largest difference of losses" not in tree.html


def test_what_diverged_has_failed_however_fast_it_was(tree: Tree) -> None:
    """Also where a summary of an earlier version says that it is done."""
    tree.setting("ddp", [9000.0], devices_per_node=2, summary={"losses": {"steps": [44], "values": [float("nan")]}})
    tree.setting("cpu", [1000.0])
    row = tree.row("ddp")
    assert (row["status"], row["standing"]) == ("failed", None)
    assert row["reason"].startswith("the training loss of step 44 is nan: the training diverged")
    assert tree.row("cpu")["standing"] == "fastest"


def test_a_lossy_setting_is_marked_as_such_wherever_it_stands(tree: Tree, capsys, monkeypatch) -> None:
    tree.setting("ddp", [100.0, 101.0], devices_per_node=2, verdict={"lossy": "compression fp16"})
    row = tree.row("ddp")
    assert (row["equivalent"], row["lossy"]) == (True, "compression fp16")
    assert "compression fp16 is lossy" in row["reason"]
    assert tree.compare() == 0
    assert "passed, lossy" in tree.html
    assert "lossy" in shown(tree, capsys, monkeypatch)


def test_not_proven_stands_beside_the_setting_wherever_it_is_shown(tree: Tree, capsys, monkeypatch) -> None:
    reason = "the loss is no mean over samples"
    tree.setting("cpu", [1000.0, 1001.0], verdict={"equivalent": False, "unprovable": reason})
    assert tree.compare() == 0
    told = f"measured, not proven: because {reason}"
    printed = " ".join(shown(tree, capsys, monkeypatch).split())
    assert "cpu (1 proc, 1 thread, resident) is recommended" in printed
    assert "gate: not proven: was measured, but cannot be proven" in printed
    assert "relative: speed of the steps alone" in printed  # the answer tells of whole trainings
    assert "✓" not in printed
    files = [(tree.root / name).read_text() for name in ("recommendation.sbatch", "comparison.md", "comparison.csv")]
    for text in (printed, tree.html, *files):
        assert told in text
    assert '<td role="cell" data-label="Equivalence gate"><div>measured, not proven' in tree.html
    for claim in ("✓ passed", "Nothing went wrong", "What went wrong", '<span class="badge struck-out">'):
        assert claim not in tree.html
    told_in_json = json.loads((tree.root / "answer.json").read_text())["answers"][0]
    assert told_in_json["recommended"]["unproven"] == reason
    assert told in told_in_json["certainty_in_words"]


# Scaling efficiency: against which setting, and where there is none


def test_strong_scaling_is_against_itself_on_the_fewest_devices(tree: Tree) -> None:
    for devices, speed in ((2, 200.0), (4, 300.0), (8, 400.0)):
        tree.setting("ddp", [speed, speed], devices_per_node=devices)
    tree.setting("cpu", [150.0, 150.0])
    rows = {(row["strategy"], row["devices_per_node"]): row for row in tree.rows()}
    assert rows["ddp", 2]["scaling_efficiency"] is None
    assert rows["ddp", 4]["scaling_efficiency"] == pytest.approx(0.75)
    assert rows["ddp", 8]["scaling_efficiency"] == pytest.approx(0.5)
    assert (rows["ddp", 8]["scaling"], rows["ddp", 8]["scaling_baseline_devices"]) == ("strong", 2)
    assert rows["cpu", 1]["scaling_efficiency"] is None


@pytest.mark.parametrize(("smaller", "larger"), [({}, {"global_batch_size": 96}), ({"verdict": REFUSED}, {})])
def test_no_efficiency_beside_what_cannot_be_compared(tree: Tree, smaller: dict, larger: dict) -> None:
    """More than the size differs; or the smaller one is struck out."""
    tree.setting("ddp", [200.0, 200.0], devices_per_node=2, **smaller)
    tree.setting("ddp", [300.0, 300.0], devices_per_node=4, **larger)
    assert [row["scaling_efficiency"] for row in tree.rows()] == [None, None]


def test_what_limits_left_out_is_told_where_nothing_keeps_to_them(tree: Tree, capsys, monkeypatch) -> None:
    tree.setting("cpu", [100.0, 100.0])
    tree.rules = {"deadline_hours": 0.001}
    assert tree.compare() == 0
    assert "it takes 0.00782 h, of 0.001 h (answer.deadline_hours)" in shown(tree, capsys, monkeypatch, 200)


# The comparison of incomplete, damaged or empty results; and its files, which are old or new, never half


def test_incomplete_results_are_one_line_and_lose_nothing(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    identity = tree.setting("cpu", [100.0], name="a")[0]
    assert tree.compare() == 0
    before = {path: path.read_bytes() for path in tree.root.glob("*.*") if path.name != "plan.json"}
    tree.write(f"runs/{identity}/run.json", {"id": identity, "task": {}})
    capsys.readouterr()
    assert tree.compare() == 1
    error = capsys.readouterr().err
    assert "run.json: is no run of this version" in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in tree.root.glob("*.*") if path.name != "plan.json"} == before
    assert len(before) == 10
    tree.rules = {"price": {"gpu_hour": 0}}
    assert tree.compare() == 1
    error = capsys.readouterr().err
    assert 'plan.json: answer.price: {"gpu_hour": 0} is not allowed; allowed: gpu_hour and cpu_hour, each' in error
    assert error.count("\n") == 1


# A summary or a verdict that is damaged is a failure of its own setting, in one line


def spoilt(**values: Any) -> Callable[[Path], object]:
    """Values that none of its kind has, in a file."""
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | values))


NO_NUMBERS = {"steps": [1], "values": ["low"]}
SUMMARY, VERDICT = "runs/x-r0/summary.json", "equivalence/gates/gate-x/verdict.json"


@pytest.mark.parametrize(
    ("path", "damage", "told"),
    [
        (SUMMARY, lambda path: path.write_text('{"run": '), "summary.json: is damaged: it is no JSON"),
        (SUMMARY, spoilt(losses=NO_NUMBERS), "'low' is not of type float"),
        (SUMMARY, spoilt(samples_per_second=float("nan")), "its samples_per_second is nan"),
        (SUMMARY, spoilt(attempts=0), "summary.json: is damaged, or of another version (attempts: 0"),
        (SUMMARY, spoilt(started_at="noon"), "summary.json: is damaged"),
        (VERDICT, Path.unlink, "gave no verdict"),
        (VERDICT, spoilt(parts=7), "gave no verdict"),
        (VERDICT, spoilt(equivalent="no"), "no verdict"),
        (VERDICT, spoilt(own_batches=[7]), "no verdict"),
        (VERDICT, spoilt(samples_per_rank=["many"]), "no verdict"),
    ],
)
def test_a_damaged_file_fails_its_setting_and_no_other(tree: Tree, path: str, damage, told: str) -> None:
    tree.setting("ddp", [9000.0], name="x", devices_per_node=2)
    tree.setting("cpu", [100.0, 101.0])
    damage(tree.root / path)
    assert told.startswith("its") or tree.compare() == 1
    row = tree.row("ddp", partial=True)
    assert (row["status"], told in row["reason"]) == ("failed", True), row["reason"]
    assert row["equivalent"] is None or path == SUMMARY
    assert tree.row("cpu", partial=True)["standing"] == "fastest"


# What spot checks found, in the comparison: a failed one strikes out, one that was not made is told.


PROBLEM = "end, steps 43 to 44: update differ from one plain process's by 5.0e-01, allowed is 2e-05"


def spot_checked(tree: Tree, runs: list[str], *statuses: str) -> None:
    """The plan asks for spot checks, and the first setting's have found this."""
    each = {"generation": "1", "spots": [{}], "unchecked": []}
    told = [
        each | {"run": run, "status": status, "problems": [PROBLEM] if status == "failed" else []}
        for run, status in zip(runs, statuses, strict=True)
    ]
    setting = runs[0].removesuffix("-r0")
    tree.write(f"equivalence/spot_checks/{setting}/verdict.json", {"setting": setting, "runs": told})
    tree.more = {"spot_checks": True}


@pytest.mark.parametrize("verdict", [None, {"equivalent": False, "unprovable": "the loss is no mean"}])
def test_a_failed_spot_check_strikes_its_setting_out(tree: Tree, verdict: dict[str, Any] | None) -> None:
    tree.setting("cpu", [100.0, 101.0])
    spot_checked(tree, tree.setting("ddp", [900.0, 901.0], verdict=verdict), "passed", "failed")
    row = tree.row("ddp")
    assert (row["equivalent"], row["unproven"], row["standing"]) == (False, None, None)
    reason = row["reason"].removesuffix("; measured, not proven: because the loss is no mean")
    assert reason == f"repeat 2: spot check failed: {PROBLEM}"
    assert row["spot_checks"] == "1 passed, 1 failed"


def test_a_verdict_on_an_earlier_start_is_none(tree: Tree) -> None:
    (run,) = tree.setting("cpu", [100.0], name="one")
    spot_checked(tree, [run], "failed")
    tree.write(f"checkpoints/{run}/chain.json", {"generation": "2"})
    assert tree.row("cpu")["spot_checks"] == "1 not checked"
