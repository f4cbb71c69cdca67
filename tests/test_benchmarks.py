"""The benchmarks run, in small, and print what they are said to."""

from __future__ import annotations

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import debian_packages
from tiny_stack import project

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
PAGES, DATA = ROOT.parent / "shared/seeds", ROOT.parent / "shared/data"
RUN = runpy.run_path(str(BENCHMARKS / "run.py"))


def printed(name: str, *options: str) -> dict[str, Any]:
    """What the benchmark prints."""
    command = [sys.executable, BENCHMARKS / f"{name}.py", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("loop", ("--against", "bare"), marks=pytest.mark.long),
        pytest.param("loop", ("--against", "step", "--channels-last"), marks=pytest.mark.long),
        pytest.param("loop", ("--against", "plain", "--task", "linear-random10"), marks=pytest.mark.long),
        ("loaders", ()),
    ],
)
def test_a_ratio_is_measured(name: str, options: tuple[str, ...]) -> None:
    found = printed(name, "--steps", "4", "--rounds", "2", "--global-batch-size", "64", *options)
    assert found["median_ratio"] > 0
    assert found["rounds"] == 2
    assert found["global_batch_size"] == 64


@pytest.mark.long
@pytest.mark.skipif(not (PAGES.is_dir() and DATA.is_dir()), reason="the centres' pages are not here")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("centres", ("--page", "cifar10-cpu", "--epochs", "0.2")),
        ("loaders", ("--against", "torchvision", "--steps", "2")),
    ],
)
def test_the_centres_way_is_measured_beside(name: str, options: tuple[str, ...]) -> None:
    found = printed(name, "--rounds", "1", *options)
    assert found["median_ratio"] > 0


@pytest.mark.slow
def test_a_benchmark_without_its_data_is_left_out_with_the_reason(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "loaders.py", "--against", "torchvision", "--data", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "left out")


@pytest.mark.long
def test_a_setting_is_measured_beside_another() -> None:
    """With saving beside without it, as the table has it."""
    saves = ("--ours", '{"checkpoint_minutes": 0.002}', "--theirs", '{"checkpoint_minutes": 1000}')
    found = printed("settings", *saves, "--steps", "40", "--rounds", "1")
    assert found["median_ratio"] > 0


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_rows_for_a_gpu_are_left_out_without_one() -> None:
    rows = {row.script: row for row in RUN["ROWS"] if row.what.startswith("on a GPU")}
    assert rows.keys() == {"centres", "loop", "settings"}
    assert {RUN["answer"](row) for row in rows.values()} == {"left out: torch sees no GPU here"}


@pytest.mark.slow
def test_results_are_a_table_with_targets(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "run.py", "--only", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "--only: 'nothing' is not allowed; allowed: centres, demo, driving, environment, hop, knobs" in done.stderr
    row = RUN["Row"]("speed", "another", "loop", reach=0.5, shown=("other_samples_per_second",))
    found = {"median_ratio": 0.51, "quartiles": [0.5, 0.52], "rounds": 3, "other_samples_per_second": 9}
    assert (
        RUN["line"](row, found) == "| speed | another | ≥ 0.5 | 0.51 (0.5 – 0.52) | yes | other samples per second 9 |"
    )
    assert RUN["line"](row, found | {"median_ratio": 0.4}).split(" | ")[4] == "no"
    assert RUN["line"](row, "left out: no GPU") == "| speed | another | ≥ 0.5 | left out: no GPU | | |"
    assert all((BENCHMARKS / f"{row.script}.py").is_file() for row in RUN["ROWS"])


@pytest.mark.long
def test_a_steps_profile_is_measured_before_and_after() -> None:
    small = ("--task", "lenet-digits", "--global-batch-size", "64", "--steps", "110", "--rounds", "1")
    (kinds,) = printed("step_profile", *small, "--strategies", "ddp")["microseconds_of_a_sample"].values()
    assert kinds.keys() == {"before", "after"}
    assert all(kind["compute"] > 0 for kind in kinds.values())


@pytest.mark.long
def test_an_environment_is_made_in_both_ways(tmp_path: Path) -> None:
    small = ("--root", project(tmp_path), "--stack", "tiny", "--module", "markupsafe")
    found = printed("environment", "--rounds", "1", *map(str, small))
    assert found["median_ratio"] > 0
    assert found["where_kept"] > 0


@pytest.mark.long
def test_what_knobs_do_is_measured() -> None:
    small = ("--task", "lenet-digits", "--global-batch-size", "64", "--steps", "24", "--rounds", "1")
    found = printed("knobs", *small, "--knobs", "huge pages", "threads bound to cores")
    assert found["median_ratio"] > 0
    assert found["knobs"].keys() == {"huge pages", "threads bound to cores"}


@pytest.mark.long
def test_the_cost_of_looking_is_measured() -> None:
    found = printed("monitor_cost", "--steps", "110", "--rounds", "1", "--monitor-seconds", "0.05")
    assert found["median_ratio"] > 0
    assert 0 < found["looks_of_cpu_time"] < 1
    assert found["observed_step_over_timed"] > 0


@pytest.mark.long
def test_the_error_of_a_steps_split_is_measured() -> None:
    found = printed("split_error", "--steps", "110", "--rounds", "1")
    assert (found["rounds"], len(found["parts"])) == (1, 6)
    assert all(map(math.isfinite, found["parts"].values())), found  # how exact they are, an idle machine tells


@pytest.mark.long
@pytest.mark.parametrize("network", ["eager", "forked"])
def test_inter_op_threads_are_measured(network: str) -> None:
    found = printed("interop", "--network", network, "--steps", "3", "--rounds", "2")
    assert found["median_ratio"] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_jobs_overhead_is_told_by_its_parts() -> None:
    found = printed("job_overhead", "--epochs", "0.5")
    parts = {name: seconds for name, seconds in found.items() if name not in ("jobs", "whole call")}
    assert found["jobs"] >= 5  # dataset, reference, gate, segment, report
    assert all(seconds > 0 for seconds in parts.values()), parts
    assert found["the training itself"] < found["whole call"]
    assert max(parts.values()) < found["whole call"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "processes", "further"),
    [
        ("cpu", 1, set()),
        ("ddp", 2, {"launcher: starts its processes"}),
    ],
)
def test_a_hop_is_told_by_its_phases(strategy: str, processes: int, further: set[str]) -> None:
    found = printed("hop", "--strategy", strategy, "--processes", str(processes), "--rounds", "1")
    assert found["median_ratio"] > 0
    begins = list(found["begins_at"].items())
    assert begins == sorted(begins, key=lambda phase: phase[1])
    names = [name for name, _ in begins]
    assert names[0] == "job: Python is up"
    assert {"rank: checkpoint is loaded", "rank: first step"} | further <= set(names)


@pytest.mark.long
def test_the_start_of_a_jobs_own_snakemake_is_measured() -> None:
    found = printed("nested", "--rounds", "1")
    assert found["version_seconds"] > 0
    assert found["seconds"] > 0


def test_the_share_of_the_proofs_is_told(tmp_path: Path) -> None:
    """From files as Snakemake writes them: a header, and a row with the seconds first."""
    for name, seconds in (
        ("reference/lenet-1", 6),
        ("gate/ddp-1", 4),
        ("spot_check/ddp-2", 5),
        ("segment/ddp-2/step-10", 65),
        ("start/ddp-2", 20),
    ):
        path = tmp_path / "benchmarks" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\th:m:s\tmax_rss\n{seconds}.0\t0:00:0{seconds % 10}\t12.5\n")
    found = printed("proof_share", str(tmp_path))
    assert (found["seconds"], found["proofs"], found["share"]) == (100.0, 15.0, 0.15)
    assert found["jobs"] == {"lenet-1": 6.0, "ddp-1": 4.0, "ddp-2": 5.0}
    assert found["rules"]["segment"] == 65.0


@pytest.mark.long
def test_what_each_rank_holds_is_measured_by_part() -> None:
    debian_packages.require()
    small = ("--width", "64", "--depth", "1", "--ranks", "2", "--held", "fp32", "--strategies", "ddp", "zero1")
    whole, divided = printed("zero_memory", *small)["rows"]
    assert (whole["strategy"], divided["strategy"]) == ("ddp", "zero1")
    assert whole["optimizer"] == pytest.approx(2 * divided["optimizer"], rel=0.02)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_each_stage_of_zero_needs_less_memory_than_the_one_before() -> None:
    debian_packages.require()
    found = printed("zero_memory", "--width", "384", "--depth", "8", "--ranks", "4", "--held", "fp32")
    peaks = {row["strategy"]: row["peak"] for row in found["rows"]}
    assert list(peaks) == ["ddp", "zero1", "zero2", "zero3"]
    assert peaks["ddp"] > peaks["zero1"] > peaks["zero2"] > peaks["zero3"]
    for row in found["rows"]:
        parts = ("parameters", "optimizer", "masters")  # stage 1 holds part of the gradients alone between steps
        assert all(row[part] == pytest.approx(row[f"predicted_{part}"], rel=0.02) for part in parts)


def test_what_intervals_cover_is_simulated() -> None:
    found = printed("statistics_coverage", "--draws", "40")
    assert 0.7 < found["normal, 5 repeats"]["covered"] <= 1
    assert found["advised for a ratio of 0.9"]["repeats"] >= 2


@pytest.mark.long
def test_a_dry_run_is_measured_beside_a_bare_workflow() -> None:
    found = printed("planning", "--runs", "6", "--rounds", "1", "--growth", "2")
    assert found["median_ratio"] > 0
    assert found["over_described"] > 0
    assert found["growth"] > 0
    assert found["bare_jobs"] == 6 * 3 + 6 + 1 < found["jobs"]


@pytest.mark.long
def test_a_large_comparison_is_measured() -> None:
    found = printed("large_comparison", "--runs", "12", "--settings", "6")
    assert (found["runs"], found["settings"]) == (12, 6)
    assert found["median_ratio"] > 0
    assert 0 < found["pictures_megabytes"] < found["page_megabytes"] * 2
    assert found["peak_memory_megabytes"] > 0


@pytest.mark.long
def test_a_driver_is_measured_on_jobs_that_end_at_once() -> None:
    found = printed("driving", "--runs", "2", "--segments", "2", "--growth", "2")
    few, many = found["driver"], found["driver_when_larger"]
    of_runs = many["jobs"] - few["jobs"]
    assert of_runs == 2 * 4  # the start of each run, its segments, its summary
    assert few["jobs"] >= 2 * 4 + 2  # and the proofs
    assert few["seconds"] > 0
    assert found["median_ratio"] > 0


def test_every_benchmark_is_run() -> None:
    tested = {
        "driving",
        "hop",
        "interop",
        "knobs",
        "loop",
        "centres",
        "demo",
        "environment",
        "run",
        "settings",
        "large_comparison",
        "loaders",
        "monitor_cost",
        "nested",
        "planning",
        "job_overhead",
        "proof_share",
        "split_error",
        "statistics_coverage",
        "step_profile",
        "zero_memory",
    }
    assert tested == {path.stem for path in BENCHMARKS.glob("*.py")} - {"common", "made_up"}


# As the centres' pages have it, of which a part is timed.
PAGE = """
import argparse
import torch
from torchvision.datasets import CIFAR10
from torchvision.transforms import ToTensor
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
parser.add_argument("--num_workers", type=int)
args = parser.parse_args()
data = CIFAR10(root="./data", train=True, download=False, transform=ToTensor())
for images, labels in torch.utils.data.DataLoader(data, batch_size=args.batch_size):
    print("a batch", images.shape, labels.dtype)
"""


@pytest.mark.slow
def test_of_a_pages_script_a_part_of_an_epoch_is_timed_without_its_data(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(PAGE)
    called = f"from centres import of_page; from pathlib import Path; folder = Path({str(tmp_path)!r})\n"
    called += "print(of_page('cifar10-gpu', folder / 'page.py', folder, 64, part=(2, 5), made_up=True))"
    done = subprocess.run([sys.executable, "-c", called], cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 100 < float(done.stdout) < 1e6  # 192 images, not 50,000 in as many seconds
