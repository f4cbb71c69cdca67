"""The comparison: from the files that runs and gates leave behind to tables, report and terminal."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import compare
import show_comparison
from relay.base import entry
from relay.comparison.columns import COMPARISON, read_csv, write_csv
from relay.comparison.inputs import read_inputs
from relay.comparison.statistics import Estimate, geometric_mean, ratio, standing
from relay.comparison.table import comparison_rows
from relay.comparison.wording import headlines, number, setting_labels, spread
from relay.datasets.catalogue import dataset
from relay.spec import requirements
from relay.spec.run import Gate, Run
from relay.spec.tasks import TASKS
from specifications import made

SCRIPTS = Path(__file__).parents[1] / "scripts"
REQUIRED = [
    "task",
    "strategy",
    "stack",
    "nodes",
    "devices_per_node",
    "world_size",
    "global_batch_size",
    "loader",
    "data_workers",
    "threads",
    "precision",
    "repeats",
    "segments",
    "samples_per_second",
    "tokens_per_second",
    "images_per_second",
    "images_per_second_low",
    "images_per_second_high",
    "images_per_second_per_device",
    "scaling_efficiency",
    "peak_memory_bytes",
    "test_accuracy",
    "max_loss_difference",
    "equivalent",
    "goodput",
    "status",
    "reason",
    "device",
    "launcher",
    "cpus_per_task",
    "learning_rate_scaling",
    "relative_speed",
    "relative_speed_low",
    "relative_speed_high",
    "standing",
]


def status(main: Callable[[list[str]], int], *arguments: str) -> Any:
    """The exit status of an entry point with these arguments."""
    with pytest.raises(SystemExit) as ended:
        entry.run(lambda: main(list(arguments)))
    return ended.value.code


class Tree:
    """A results folder as the stages before the comparison leave it."""

    def __init__(self, root: Path, margin: float = 0.03) -> None:
        self.root, self.runs, self.skipped, self.margin = root / "results", [], [], margin

    def write(self, path: str, value: Any) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value), encoding="utf-8")
        return target

    def skip(self, strategy: str, reason: str, *, task: str = "lenet-digits", **values: Any) -> None:
        """A setting that was skipped."""
        values = {"global_batch_size": 64, "epochs": 2.0, "steps_per_epoch": 22, "total_steps": 44} | values
        file = str(SCRIPTS / f"relay/strategies/{strategy}.py")
        chosen = {"strategy": strategy, "strategy_file": file, "evaluate_every_steps": 22}
        spec = TASKS[task]
        skipped = made(Gate, id="", seed=0, task=spec, dataset=dataset(spec.dataset), **chosen, **values)
        setting = {name: value for name, value in asdict(skipped).items() if name not in ("id", "seed")}
        self.skipped.append({"setting": setting, "reasons": [reason]})

    def setting(
        self,
        strategy: str,
        speeds: Sequence[float | None],
        *,
        name: str = "",
        accuracies: Sequence[float | None] = (),
        verdict: dict[str, Any] | None = None,
        summary: dict[str, Any] | None = None,
        **changes: Any,
    ) -> list[str]:
        """One setting with a repeat for each speed; returns the runs' ids."""
        task = TASKS[changes.pop("task", "lenet-digits")]
        setting = name or f"{strategy}-{len(self.runs)}"
        devices = changes.get("devices_per_node", 1)
        several = {"launcher": "torchrun" if devices > 1 else "none"}
        fields = {"global_batch_size": 64, "epochs": 2.0, "steps_per_epoch": 22, "total_steps": 44} | several | changes
        ids = []
        for repeat, speed in enumerate(speeds):
            run = made(
                Run, id=f"{setting}-r{repeat}", setting_id=setting, repeat=repeat, seed=1 + repeat, task=task,
                dataset=dataset(task.dataset), strategy=strategy,
                strategy_file=str(SCRIPTS / f"relay/strategies/{strategy}.py"),
                evaluate_every_steps=22, **fields,
            )  # fmt: skip
            run.write(self.root / "runs" / run.id / "run.json")
            accuracy = accuracies[repeat] if accuracies else 0.9 + repeat / 100
            self.write(f"runs/{run.id}/summary.json", self._summary(run, speed, accuracy) | (summary or {}))
            self.runs.append({"id": run.id, "setting": setting, "gate": f"gate-{setting}", "segments": [22, 44]})
            ids.append(run.id)
        self.write(f"equivalence/gates/gate-{setting}/verdict.json", self._verdict(setting) | (verdict or {}))
        return ids

    @staticmethod
    def _summary(run: Run, speed: float | None, accuracy: float | None) -> dict[str, Any]:
        return {
            "run": run.id, "setting": run.setting_id, "status": "done", "segments": 2, "attempts": 2,
            "samples_per_second": speed, "measured_steps": 24, "step_seconds_median": 0.003, "step_seconds_p95": 0.004,
            "data_wait_fraction": 0.02, "train_seconds": 3.0, "allocated_seconds": 10.0 * (1 + run.repeat),
            "goodput": 0.5 + 0.1 * run.repeat, "peak_memory_bytes": 1000 + run.repeat, "test_accuracy": accuracy,
            "test_loss": 0.1, "train_loss": 0.05,
            "evaluations": [{"step": 22, "test_loss": 0.2, "test_accuracy": accuracy}],
            "losses": {"steps": [1, 22, 44], "values": [2.3, 0.5, 0.05]}, "hosts": ["node1"],
            "device_name": "AMD EPYC", "versions": {"torch": "2.13.0+cpu", "python": "3.11.2", "cuda": None},
            "code": "c0de",
            "strategy_source": "5eed", "reason": "", "started_at": "2026-01-02T03:04:05+00:00",
        }  # fmt: skip

    @staticmethod
    def _verdict(setting: str) -> dict[str, Any]:
        part = {
            "name": "algorithm",
            "passed": True,
            "figure": 3e-16,
            "limit": 1e-9,
            "what": "largest difference of losses",
        }
        return {
            "gate": f"gate-{setting}", "equivalent": True, "max_loss_difference": 3e-16, "parts": [part],
            "problems": [], "notes": ["dropout switched off"], "samples_per_rank": [32.0, 32.0],
            "bytes_sent_per_step": [247400, 247400], "strategy_source": "5eed",
        }  # fmt: skip

    def compare(self, *arguments: str) -> int:
        return status(compare.main, "--plan", str(self.write_plan()), "--results", str(self.root), *arguments)

    def write_plan(self) -> Path:
        return self.write("plan.json", {"runs": self.runs, "skipped": self.skipped, "margin": self.margin})

    def rows(self, *, partial: bool = False) -> list[dict[str, Any]]:
        """comparison.csv, written and read again; without the report, whose plots take half a second."""
        inputs = read_inputs(self.write_plan(), self.root, partial=partial)
        write_csv(self.root / "comparison.csv", COMPARISON, comparison_rows(inputs))
        return read_csv(self.root / "comparison.csv", COMPARISON)

    def row(self, strategy: str, *, partial: bool = False) -> dict[str, Any]:
        (row,) = [row for row in self.rows(partial=partial) if row["strategy"] == strategy]
        return row

    def headline(self, *, partial: bool = False) -> str:
        (found,) = headlines(self.rows(partial=partial))
        return found

    def fail(self, identity: str, error: str | None) -> None:
        (self.root / "runs" / identity / "summary.json").unlink()
        if error is not None:
            fault = {"error": error, "rank": 1, "traceback": "Traceback …", "segment_end": 22}
            self.write(f"checkpoints/{identity}/fault.json", fault)

    @property
    def html(self) -> str:
        return (self.root / "comparison.html").read_text(encoding="utf-8")


REFUSED = {
    "equivalent": False,
    "max_loss_difference": 0.25,
    "parts": [{"name": "algorithm", "passed": False, "figure": 0.25, "limit": 1e-9, "what": "difference of losses"}],
    "problems": ["algorithm: losses differ by 0.25; at most 1e-9 is allowed"],
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def shown(tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> str:
    """What show_comparison prints into a pipe from the folder that holds the results."""
    monkeypatch.chdir(tree.root.parent)
    monkeypatch.setenv("COLUMNS", str(columns))
    capsys.readouterr()
    assert status(show_comparison.main, "--results", "results") == 0
    return capsys.readouterr().out


# Statistics against scipy's own tests, and against values worked out by hand.


def test_geometric_mean_of_two_repeats_by_hand() -> None:
    # Logarithms 0 and 2: mean 1, standard error 1, and t of 1 degree of freedom at 97.5 % is 12.7062.
    estimate = geometric_mean([1.0, math.e**2])
    assert estimate.value == pytest.approx(math.e)
    assert math.log(estimate.low) == pytest.approx(1 - 12.7062, abs=1e-4)
    assert math.log(estimate.high) == pytest.approx(1 + 12.7062, abs=1e-4)


def test_geometric_mean_agrees_with_scipy() -> None:
    speeds = [20100.0, 20500.0, 19800.0, 20900.0, 20444.0]
    estimate = geometric_mean(speeds)
    interval = stats.ttest_1samp(np.log(speeds), 0).confidence_interval(0.95)
    assert estimate.value == pytest.approx(stats.gmean(speeds))
    assert (estimate.low, estimate.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_ratio_agrees_with_scipys_welch_test() -> None:
    a, b = [100.0, 104.0, 99.0, 103.0], [131.0, 120.0, 125.0]
    estimate = ratio(a, b)
    interval = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval(0.95)
    assert estimate.value == pytest.approx(stats.gmean(a) / stats.gmean(b))
    assert (estimate.low, estimate.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_one_repeat_has_no_interval_and_equal_repeats_a_narrow_one() -> None:
    assert geometric_mean([5.0]) == Estimate(5.0, None, None)
    assert ratio([4.0], [8.0, 8.1]).low is None
    same = ratio([4.0, 4.0], [8.0, 8.0])
    assert (same.value, same.low, same.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("speeds", [[], [0.0, 1.0], [-1.0], [float("nan"), 1.0], [float("inf")]])
def test_speeds_that_are_none_are_refused(speeds: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        geometric_mean(speeds)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.98, 1.01, "tie"),
        (0.96, 1.01, "unclear"),  # slower by more than the margin, or not
        (0.98, 1.04, "unclear"),  # the band ends at 1 / 0.97 = 1.0309
        (0.96, 0.98, "unclear"),  # slower for sure, but perhaps by less than the margin
        (0.90, 0.969, "slower"),
        (0.90, 0.971, "unclear"),
        (None, None, "unclear"),
    ],
)
def test_standing_at_a_margin_of_three_percent(low: float | None, high: float | None, expected: str) -> None:
    assert standing(Estimate(0.97, low, high), 0.03) == expected


# The tables.


def test_columns_and_pooled_figures(tree: Tree) -> None:
    tree.setting("ddp", [100.0, 110.0, 121.0], accuracies=[0.9, 0.92, 0.97], devices_per_node=2, threads=1)
    assert tree.compare() == 0
    with (tree.root / "comparison.csv").open(newline="") as stream:
        raw = list(csv.DictReader(stream))
    assert set(REQUIRED) <= set(raw[0])
    assert raw[0]["equivalent"] == "true"
    row = tree.row("ddp")
    assert row["images_per_second"] == pytest.approx(110)  # the geometric mean: 110 / 1.1, 110, 110 × 1.1
    half = stats.t.ppf(0.975, 2) * math.log(1.1) / math.sqrt(3)
    assert row["images_per_second_low"] == pytest.approx(110 * math.exp(-half))
    assert row["images_per_second_high"] == pytest.approx(110 * math.exp(half))
    assert row["images_per_second_per_device"] == pytest.approx(55)
    assert (row["samples_per_second"], row["samples_per_second_low"]) == (
        row["images_per_second"],
        row["images_per_second_low"],
    )
    assert (row["unit"], row["tokens_per_second"]) == ("images", None)
    assert (row["world_size"], row["repeats"], row["segments"], row["status"]) == (2, 3, 2, "done")
    assert row["test_accuracy"] == pytest.approx(0.93)
    assert row["peak_memory_bytes"] == 1002
    assert row["goodput"] == pytest.approx((0.5 * 10 + 0.6 * 20 + 0.7 * 30) / 60)
    assert (row["standing"], row["relative_speed"], row["reason"]) == ("best", 1.0, None)
    assert row["scaling_efficiency"] is None


def test_every_run_has_a_row_of_its_own(tree: Tree) -> None:
    ids = tree.setting("cpu", [100.0, 110.0], accuracies=[0.9, 0.8])
    assert tree.compare() == 0
    with (tree.root / "runs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["run"] for row in rows] == ids
    assert [(row["seed"], row["test_accuracy"]) for row in rows] == [("1", "0.9"), ("2", "0.8")]
    assert rows[0]["step_seconds_p95"] == "0.004"
    assert rows[0]["versions"] == "python 3.11.2; torch 2.13.0+cpu"


def test_best_tie_slower_and_unclear(tree: Tree) -> None:
    fast = [1000.0, 1001.0, 999.0]
    tree.setting("cpu", fast, name="best")
    tree.setting("cpu", [995.0, 996.0, 994.0], name="close", threads=2)
    tree.setting("cpu", [500.0, 501.0, 499.0], name="half", threads=3)
    tree.setting("cpu", [900.0, 1050.0, 980.0], name="noisy", threads=4)
    rows = {row["setting"]: row for row in tree.rows()}
    assert {name: row["standing"] for name, row in rows.items()} == {
        "best": "best", "close": "tie", "half": "slower", "noisy": "unclear",
    }  # fmt: skip
    interval = stats.ttest_ind(np.log([500, 501, 499]), np.log(fast), equal_var=False).confidence_interval()
    half = rows["half"]
    assert half["relative_speed_low"] == pytest.approx(math.exp(interval.low))
    assert half["relative_speed_high"] == pytest.approx(math.exp(interval.high))


def test_text_is_told_in_tokens(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of text is 64 tokens; how settings compare does not depend on what is counted."""
    tree.setting("ddp", [10.0, 11.0, 12.1], task="gpt-tiny", devices_per_node=2)
    tree.setting("cpu", [5.0, 5.5, 6.05], task="gpt-tiny")
    tree.skip("single_gpu", "no GPU here", task="gpt-tiny", device="cuda")
    assert tree.compare() == 0
    row, slower, skipped = tree.rows()
    assert (row["unit"], row["images_per_second"], row["images_per_second_low"]) == ("tokens", None, None)
    assert row["samples_per_second"] == pytest.approx(11)
    for part in ("", "_low", "_high", "_per_device"):
        assert row[f"tokens_per_second{part}"] == pytest.approx(64 * row[f"samples_per_second{part}"])
    assert row["tokens_per_second_low"] < row["tokens_per_second"] < row["tokens_per_second_high"]
    assert slower["relative_speed"] == pytest.approx(0.5)
    assert (skipped["unit"], skipped["tokens_per_second"]) == (None, None)
    with (tree.root / "runs.csv").open(newline="") as stream:
        runs = list(csv.DictReader(stream))
    assert [float(run["tokens_per_second"]) for run in runs[:3]] == pytest.approx([640, 704, 774.4])
    assert {run["images_per_second"] for run in runs} == {""}
    out = shown(tree, capsys, monkeypatch)
    for place in (out, tree.html, tree.headline()):
        assert "tokens/s" in place
        assert "images" not in place
        assert "704" in place
    assert "tokens per second" in tree.html


def test_regression_is_told_in_samples(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0], task="linear-random10")
    row = tree.row("cpu")
    assert (row["unit"], row["images_per_second"], row["tokens_per_second"]) == ("samples", None, None)
    assert "samples/s" in tree.headline()


def test_a_task_of_which_all_was_skipped_is_shown(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.skip("single_gpu", "no GPU here", task="gpt-tiny", device="cuda")
    assert tree.compare() == 0
    assert "no GPU here" in shown(tree, capsys, monkeypatch)


def test_settings_of_two_tasks_are_not_compared(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1001.0])
    tree.setting("cpu", [10.0, 10.1], task="lenet-synthetic")
    rows = tree.rows()
    assert [row["standing"] for row in rows] == ["best", "best"]
    assert [told.split(":")[0] for told in headlines(rows)] == ["lenet-digits", "lenet-synthetic"]
    assert tree.compare() == 0
    assert tree.html.count('class="headline"') == 2
    ids = Page(tree.html).ids
    assert len(ids) == len(set(ids))


def test_struck_out_setting_is_never_the_best(tree: Tree) -> None:
    tree.setting("ddp", [9000.0, 9001.0], devices_per_node=2, verdict=REFUSED)
    tree.setting("cpu", [1000.0, 1001.0])
    row = tree.row("ddp")
    assert (row["status"], row["equivalent"], row["standing"]) == ("done", False, None)
    assert "losses differ by 0.25" in row["reason"]
    assert row["relative_speed"] is None
    assert row["images_per_second"] > 9000
    assert tree.row("cpu")["standing"] == "best"
    assert tree.compare() == 0
    assert "<s>9,000</s>" in tree.html
    assert "<s>1,000</s>" not in tree.html
    assert "struck out" in tree.html


def test_code_that_was_not_gated_does_not_count(tree: Tree) -> None:
    tree.setting("ddp", [9000.0], devices_per_node=2, summary={"strategy_source": "edited"})
    row = tree.row("ddp")
    assert (row["equivalent"], row["reason"]) == (False, "the code gated is not the code that ran")


def test_a_verdict_of_other_code_is_not_shown_as_the_runs(tree: Tree) -> None:
    """Neither of a run that is done nor of one that failed; repeats that ran the code gated are not named."""
    ids = tree.setting("ddp", [9000.0, 9000.0], devices_per_node=2)
    tree.fail(ids[1], "no memory")
    tree.write(f"checkpoints/{ids[1]}/chain.json", {"strategy_source": "edited"})
    row = tree.row("ddp", partial=True)
    assert (row["status"], row["equivalent"], row["max_loss_difference"]) == ("failed", False, None)
    assert row["reason"] == "repeat 1: the code gated is not the code that ran; repeat 1: no memory"
    assert tree.compare("--partial") == 0
    assert "largest difference of losses" not in tree.html


def test_what_diverged_has_failed_however_fast_it_was(tree: Tree) -> None:
    """Also where a summary of an earlier version says that it is done."""
    tree.setting("ddp", [9000.0], devices_per_node=2, summary={"losses": {"steps": [44], "values": [float("nan")]}})
    tree.setting("cpu", [1000.0])
    row = tree.row("ddp")
    assert (row["status"], row["standing"]) == ("failed", None)
    assert row["reason"].startswith("the training loss of step 44 is nan: the training diverged")
    assert tree.row("cpu")["standing"] == "best"


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


def test_weak_scaling_where_the_batch_grows_with_the_devices(tree: Tree) -> None:
    tree.setting("ddp", [200.0, 200.0], devices_per_node=2, global_batch_size=64)
    tree.setting("ddp", [380.0, 380.0], devices_per_node=4, global_batch_size=128)
    efficient = tree.rows()[0]
    assert (efficient["scaling"], efficient["scaling_efficiency"]) == ("weak", pytest.approx(0.95))


@pytest.mark.parametrize(
    "other", [{"loader": "dataloader"}, {"threads": 2}, {"global_batch_size": 96}, {"precision": "fp64"}]
)
def test_no_efficiency_where_more_than_the_size_differs(tree: Tree, other: dict[str, Any]) -> None:
    tree.setting("ddp", [200.0, 200.0], devices_per_node=2)
    tree.setting("ddp", [300.0, 300.0], devices_per_node=4, **other)
    assert [row["scaling_efficiency"] for row in tree.rows()] == [None, None]


def test_one_process_needs_no_launcher_but_several_need_the_same(tree: Tree) -> None:
    tree.setting("fsdp", [100.0, 100.0], devices_per_node=1)
    tree.setting("fsdp", [150.0, 150.0], devices_per_node=2)
    assert tree.rows()[0]["scaling_efficiency"] == pytest.approx(0.75)
    tree.setting("ddp", [200.0, 200.0], devices_per_node=2, launcher="srun")
    tree.setting("ddp", [300.0, 300.0], devices_per_node=4)
    assert [row["scaling_efficiency"] for row in tree.rows() if row["strategy"] == "ddp"] == [None, None]


def test_no_efficiency_against_a_struck_out_setting(tree: Tree) -> None:
    tree.setting("ddp", [200.0, 200.0], devices_per_node=2, verdict=REFUSED)
    tree.setting("ddp", [300.0, 300.0], devices_per_node=4)
    assert [row["scaling_efficiency"] for row in tree.rows()] == [None, None]


def test_skipped_settings_stand_last_with_their_reason(tree: Tree) -> None:
    tree.skip("single_gpu", "no GPU here", device="cuda")
    tree.setting("cpu", [100.0, 101.0])
    rows = tree.rows()
    assert [row["status"] for row in rows] == ["done", "skipped"]
    assert (rows[1]["equivalent"], rows[1]["reason"], rows[1]["images_per_second"]) == (
        None,
        "no GPU here",
        None,
    )


def test_failed_repeat_fails_the_setting_but_keeps_its_figures(tree: Tree) -> None:
    ids = tree.setting("ddp", [9000.0, 9100.0, 9200.0], devices_per_node=2)
    tree.setting("cpu", [100.0, 101.0])
    tree.fail(ids[1], "RuntimeError: rank 1 ran out of memory")
    row = tree.row("ddp", partial=True)
    assert (row["status"], row["repeats"], row["repeats_planned"]) == ("failed", 2, 3)
    assert row["reason"] == "repeat 1: RuntimeError: rank 1 ran out of memory"
    assert row["images_per_second"] == pytest.approx(math.sqrt(9000 * 9200))
    assert (row["standing"], row["equivalent"]) == (None, True)
    assert tree.row("cpu", partial=True)["standing"] == "best"
    assert tree.compare("--partial") == 0
    with (tree.root / "runs.csv").open(newline="") as stream:
        assert [run["status"] for run in csv.DictReader(stream)].count("failed") == 1


def test_run_without_any_trace_names_its_log(tree: Tree) -> None:
    ids = tree.setting("ddp", [9000.0, 9100.0], devices_per_node=2)
    for identity in ids:
        tree.fail(identity, None)
    assert tree.row("ddp", partial=True)["reason"] == "all 2 repeats: no result: see .snakemake/log"
    log = tree.root / "logs" / "train" / ids[0] / "22.log"
    log.parent.mkdir(parents=True)
    log.write_text("killed")
    assert f"repeat 0: no result: see {log}" in tree.row("ddp", partial=True)["reason"]


def test_broken_summary_and_missing_verdict_are_failures_of_their_own_setting(tree: Tree) -> None:
    broken = tree.setting("ddp", [9000.0], name="broken", devices_per_node=2)[0]
    (tree.root / "runs" / broken / "summary.json").write_text('{"run": ')
    tree.setting("fsdp", [9000.0], name="ungated", devices_per_node=2)
    (tree.root / "equivalence/gates/gate-ungated/verdict.json").unlink()
    tree.setting("cpu", [100.0, 101.0])
    assert "summary.json: is no JSON" in tree.row("ddp", partial=True)["reason"]
    ungated = tree.row("fsdp", partial=True)
    assert (ungated["status"], ungated["equivalent"]) == ("failed", False)
    assert "gave no verdict" in ungated["reason"]
    assert tree.row("cpu", partial=True)["standing"] == "best"


def remove_summary(tree: Tree, identity: str) -> None:
    tree.fail(identity, "RuntimeError: lost")


def remove_verdict(tree: Tree, identity: str) -> None:
    (tree.root / "equivalence/gates/gate-a/verdict.json").unlink()


def remove_run(tree: Tree, identity: str) -> None:
    (tree.root / "runs" / identity / "run.json").unlink()


def spoil_run(tree: Tree, identity: str) -> None:
    tree.write(f"runs/{identity}/run.json", {"id": identity, "task": {}})


def shorten_summary(tree: Tree, identity: str) -> None:
    tree.write(f"runs/{identity}/summary.json", {"run": identity})


def spoil_margin(tree: Tree, identity: str) -> None:
    tree.margin = 3


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (remove_summary, "summary.json: is missing"),
        (remove_verdict, "verdict.json: is missing"),
        (remove_run, "run.json: is missing"),
        (spoil_run, "run.json: is no run of this version"),
        (shorten_summary, "summary.json: lacks 'samples_per_second'"),
        (spoil_margin, "margin: 3 is not allowed"),
    ],
)
def test_incomplete_results_are_one_line_and_lose_nothing(
    tree: Tree, capsys: pytest.CaptureFixture[str], damage: Callable[[Tree, str], None], named: str
) -> None:
    identity = tree.setting("cpu", [100.0], name="a")[0]
    assert tree.compare() == 0
    before = {path: path.read_bytes() for path in tree.root.glob("*.*") if path.name != "plan.json"}
    damage(tree, identity)
    capsys.readouterr()
    assert tree.compare() == 1
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in tree.root.glob("*.*") if path.name != "plan.json"} == before
    assert len(before) == 3


def test_missing_plan_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(compare.main, "--plan", str(tmp_path / "plan.json"), "--results", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/plan.json: is missing; run the stage that makes it first\n"


def test_writing_leaves_no_temporary_file_and_is_repeatable(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0])
    assert tree.compare() == 0
    first = {path.name: path.read_bytes() for path in tree.root.iterdir() if path.is_file()}
    assert sorted(first) == ["comparison.csv", "comparison.html", "plan.json", "runs.csv"]
    assert tree.compare() == 0
    assert {path.name: path.read_bytes() for path in tree.root.iterdir() if path.is_file()} == first


def test_remark_of_a_run_that_is_done_is_passed_on(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0], summary={"reason": "4 threads shared 2 CPUs"})
    row = tree.row("cpu")
    assert (row["status"], row["standing"]) == ("done", "best")
    assert row["reason"] == "all 2 repeats: 4 threads shared 2 CPUs"
    assert tree.compare() == 0
    assert "Note: all 2 repeats: 4 threads shared 2 CPUs" in tree.html


def test_strategy_that_fails_in_the_gate_is_struck_out(tree: Tree) -> None:
    nothing = {
        "parts": [],
        "max_loss_difference": None,
        "problems": ["the strategy failed in the gate: KeyError: 'x'"],
    }
    verdict = REFUSED | nothing | {"samples_per_rank": None, "bytes_sent_per_step": None}
    tree.setting("ddp", [100.0, 101.0], verdict=verdict)
    assert tree.row("ddp")["reason"] == "the strategy failed in the gate: KeyError: 'x'"
    assert tree.compare() == 0
    assert "the strategy failed in the gate: KeyError: &#39;x&#39;" in tree.html


def test_a_lossy_setting_is_marked_as_such_wherever_it_stands(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.setting("ddp", [100.0, 101.0], devices_per_node=2, verdict={"lossy": "compression fp16"})
    row = tree.row("ddp")
    assert (row["equivalent"], row["lossy"]) == (True, "compression fp16")
    assert "compression fp16 is lossy" in row["reason"]
    assert tree.compare() == 0
    assert "passed, lossy" in tree.html
    assert "lossy" in shown(tree, capsys, monkeypatch)


def test_reader_sees_the_old_table_or_the_new_one_whole(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0])
    tree.rows()
    with (tree.root / "comparison.csv").open() as reader:
        tree.setting("ddp", [200.0, 201.0], devices_per_node=2)
        tree.rows()
        assert "ddp" not in reader.read()
    assert "ddp" in (tree.root / "comparison.csv").read_text()


def test_results_that_cannot_be_written_are_one_line(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.setting("cpu", [100.0])
    (tree.root / "comparison.html").mkdir()
    assert tree.compare() == 1
    assert "comparison.html: cannot be written" in capsys.readouterr().err
    assert not list(tree.root.glob(".*"))


def test_run_too_short_to_be_timed_is_done_without_a_speed(tree: Tree) -> None:
    tree.setting("cpu", [None, None])
    row = tree.row("cpu")
    assert (row["status"], row["images_per_second"], row["standing"]) == ("done", None, None)
    assert row["reason"] == "all 2 repeats: too short to be timed: no step after the warm-up"
    assert tree.headline() == "No setting was measured and shown equivalent: 1 too short to be timed."
    assert tree.compare() == 0


def test_regression_shows_the_loss_in_place_of_accuracy(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0], accuracies=[None, None], task="linear-random10")
    assert tree.row("cpu")["test_accuracy"] is None
    assert tree.compare() == 0
    assert "test loss" in tree.html
    assert "test accuracy (%)" not in tree.html


def test_diverged_run_is_reported(tree: Tree) -> None:
    losses = {"steps": [1, 2, 3], "values": [2.3, float("inf"), float("nan")]}
    tree.setting("cpu", [100.0, 101.0], summary={"losses": losses, "test_loss": float("nan")})
    tree.setting("ddp", [100.0, 101.0], verdict=REFUSED | {"max_loss_difference": float("nan")})
    assert math.isnan(tree.row("ddp")["max_loss_difference"])
    assert tree.compare() == 0
    assert "not finite" in tree.html


def test_no_run_at_all(tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree.rows() == []
    assert tree.compare() == 0
    assert "Nothing was measured" in tree.html
    assert "Nothing was measured" in shown(tree, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (20533.0, "20,500"), (999.9, "1,000"), (0.98765, "0.988"), (12.345, "12.3"), (0.0, "0"),
        (None, "–"), (math.nan, "not finite"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_that_mean_something(value: float | None, expected: str) -> None:
    assert number(value) == expected


# The headline.


@pytest.mark.parametrize(("low", "high", "expected"), [(98, 102.0408, "±2.0 %"), (50, 200, "×÷2.0"), (None, None, "")])
def test_spread_is_half_the_interval_or_a_factor(low: float | None, high: float | None, expected: str) -> None:
    assert spread({"samples_per_second_low": low, "samples_per_second_high": high}) == expected


def test_headline_names_the_fastest_and_by_how_much(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1001.0, 999.0], threads=2, accuracies=[0.96, 0.97, 0.98])
    tree.setting("cpu", [500.0, 501.0, 499.0], threads=1)
    told = tree.headline()
    assert (
        "cpu (1 proc, 2 threads, resident) is fastest: 1,000 images/s, 2.00 times (95 % interval 1.99 to 2.01)" in told
    )
    assert "as fast as the next, cpu (1 proc, 1 thread, resident)" in told
    assert told.endswith("Test accuracy: 97.0 %.")


def test_headline_says_tie(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1001.0, 999.0])
    tree.setting("ddp", [999.0, 1000.0, 998.0], devices_per_node=2)
    told = tree.headline()
    assert told.startswith(
        "A tie: cpu (1 proc, 1 thread, resident) and ddp (2 procs, 1 thread, resident) train equally"
    )
    assert "fastest" not in told
    assert "Test accuracy, in the same order: 91.0 % and 91.0 %." in told


def test_headline_admits_what_one_repeat_cannot_tell(tree: Tree) -> None:
    tree.setting("cpu", [1000.0])
    tree.setting("ddp", [500.0], devices_per_node=2)
    told = tree.headline()
    assert "not beyond doubt" in told
    assert "With one repeat there is no spread to judge by" in told
    assert tree.compare() == 0
    assert "one repeat: no spread" in tree.html


def test_headline_of_overlapping_intervals(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1100.0, 900.0])
    tree.setting("ddp", [950.0, 1050.0, 850.0], devices_per_node=2)
    assert "Too close to call with these repeats: ddp (2 procs" in tree.headline()


def test_headline_when_nothing_counts(tree: Tree) -> None:
    ids = tree.setting("cpu", [1000.0])
    tree.setting("ddp", [500.0], devices_per_node=2, verdict=REFUSED)
    tree.fail(ids[0], "OSError: gone")
    assert tree.headline(partial=True) == "No setting was measured and shown equivalent: 1 struck out, 1 failed."


# The report.


class Page(HTMLParser):
    """Notes what a page is made of and what it would load."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A comparison with everything in it, and with names and reasons that try to be markup; not to be changed."""
    tree = Tree(tmp_path_factory.mktemp("full"))
    tree.setting("cpu", [20500.0, 20700.0, 20400.0], threads=2, cpus_per_task=2)
    tree.setting("cpu", [12900.0, 12800.0, 13050.0])
    tree.setting("ddp", [19900.0, 20800.0, 18900.0], devices_per_node=2)
    tree.setting("ddp", [41000.0, 40900.0, 41100.0], devices_per_node=2, options={"hook": "<b>$x_1$"}, verdict=REFUSED)
    failing = tree.setting("ddp", [9000.0, 9100.0, 9200.0], devices_per_node=4)
    for identity in failing[1:]:
        tree.fail(identity, "RuntimeError: <script>alert(1)</script> & [bold]more[/bold]")
    tree.skip("single_gpu", "<img src=x>", device="cuda")
    assert tree.compare("--partial") == 0
    return tree


def test_page_is_well_formed_and_loads_nothing(full: Tree) -> None:
    page = Page(full.html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {ref for ref in page.references if not ref.startswith("#")} == {"comparison.csv", "runs.csv"}
    assert not {"script", "link", "img", "iframe", "object", "embed", "b"} & set(page.tags)
    assert not re.search(r"@import|url\((?!#)", full.html)
    assert {ref[1:] for ref in page.references if ref.startswith("#")} <= set(page.ids)


def test_page_escapes_what_it_is_given(full: Tree) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; [bold]" in full.html
    assert "<script" not in full.html
    assert "&lt;img src=x&gt;" in full.html
    assert "hook=&lt;b&gt;$x_1$" in full.html


def test_page_says_how_it_was_measured_and_what_was_not(full: Tree) -> None:
    for told in (
        "Only shown on CPU: not timed on GPUs: ddp.",
        "AMD EPYC",
        "node1",
        "torch 2.13.0+cpu",
        "dropout switched off",
        "first 10 steps",
        "a margin of 3 %",
        "3e-16",
        "1e-09",
        "247,400; 247,400",
    ):
        assert told in full.html
    assert full.html.count("<svg") == 2


def test_strategies_of_the_cpu_alone_are_not_asked_for_gpus(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0])
    assert tree.compare() == 0
    assert "Only shown on CPU" not in tree.html


# The terminal.


@pytest.mark.parametrize("columns", [60, 80])
def test_table_fits_the_terminal(
    full: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    out = shown(full, capsys, monkeypatch, columns)
    assert max(map(len, out.splitlines())) <= columns
    assert "\x1b" not in out
    flat = " ".join(out.split())
    for told in (
        "20,500 ±",
        "best",
        "unclear",
        "slower",
        "struck out",
        "✗",
        "✓",
        "failed",
        "skipped",
        "91.0",
    ):
        assert told in flat
    assert "RuntimeError: <script>alert(1)</script> & [bold]more[/bold]" in flat
    assert out.rstrip().endswith("Report: results/comparison.html")


def test_table_is_what_a_pipe_gets_without_unicode(full: Tree) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    command = [sys.executable, str(SCRIPTS / "show_comparison.py"), "--results", str(full.root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "yes" in done.stdout
    assert "NO" in done.stdout
    assert done.stderr == ""


def test_nothing_to_show_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(show_comparison.main, "--results", str(tmp_path)) == 1
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "comparison.csv").write_text("task,strategy\nlenet,cpu\n")
    assert status(show_comparison.main, "--results", str(tmp_path)) == 1
    assert "is no table of this version" in capsys.readouterr().err


def test_settings_that_look_alike_are_told_apart(tree: Tree) -> None:
    tree.setting("ddp", [100.0, 101.0], devices_per_node=2, global_batch_size=64)
    tree.setting("ddp", [200.0, 201.0], devices_per_node=2, global_batch_size=128)
    tree.setting("ddp", [300.0, 301.0], devices_per_node=2, global_batch_size=128, cpus_per_task=2)
    tree.setting("ddp", [400.0, 401.0], devices_per_node=2, global_batch_size=128, warmup_steps=5)
    labels = setting_labels(tree.rows())
    assert len(set(labels)) == 4
    assert labels[-1] == "2 procs, 1 thread, resident, batch 64"
    assert labels[-2] == "2 procs, 1 thread, resident, batch 128, 1 CPU, ddp-2"
    assert labels[1] == "2 procs, 1 thread, resident, batch 128, 2 CPUs"


def test_only_options_that_are_not_the_defaults_name_a_setting(tree: Tree) -> None:
    defaults = requirements.read(SCRIPTS / "relay/strategies/ddp.py").options
    name, value = next((name, value) for name, value in defaults.items() if type(value) is int)
    tree.setting("ddp", [200.0, 201.0], options={**defaults, name: value + 1})
    tree.setting("ddp", [100.0, 101.0], options=dict(defaults))
    tree.skip("ddp", "no", options=dict(defaults))
    rows = tree.rows()
    assert [row["chosen_options"] for row in rows] == [f"{name}={value + 1}", None, None]
    assert all(f"{name}={value}" in row["options"] for row in rows[1:])
    labels = setting_labels(rows)
    assert labels[0].endswith(f"resident, {name}={value + 1}")
    assert labels[1] == "1 proc, 1 thread, resident"


def test_settings_that_differ_in_how_they_are_computed_are_told_apart(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0])
    tree.setting("cpu", [200.0, 201.0], compile=True, channels_last=True, activation_checkpointing=True)
    faster, slower = setting_labels(tree.rows())
    assert faster == "1 proc, 1 thread, resident, compiled, channels last, activations recomputed"
    assert slower == "1 proc, 1 thread, resident, not compiled, channels first, activations kept"
