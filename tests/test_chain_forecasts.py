"""At which steps a run's jobs end, what each time limit would mean, and what a plan costs."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plans import CPU, DDP, ROOT, only, plan, planned
from refusals import refusal
from relay.base.errors import UserError
from relay.config.blocks import Segment
from relay.config.config import load
from relay.planning import costs, segments
from relay.planning.costs import Cost
from relay.planning.handed import plan_json
from relay.planning.plan import Plan
from relay.planning.segments import TooShort, forecast, least_minutes
from relay.planning.table import render
from relay.run_folder import job_times
from relay.run_folder.job_times import JobTimes
from relay.spec.recipe import Length
from relay.spec.run import Run
from slurm_runs import PARTITIONS, site_in
from summaries import left_records

pytestmark = pytest.mark.usefixtures("in_the_project")


def leave(results: Path, run: Run, jobs: Sequence[tuple[float, float, float, int]], compiling: float = 0.0) -> None:
    """What jobs of a run leave behind: of each the seconds to start, for a step, and to save, and how many steps.

    The first step takes so much longer as it is `compiling`.
    """
    work, began, step, entries = results / "checkpoints" / run.id, 1000.0, 0, []
    run.write(results / "runs" / run.id / "run.json")
    for number, (start, seconds, saving, steps) in enumerate(jobs, start=1):
        first, last = began + start, began + start + compiling + steps * seconds + 5.0  # 5 s of evaluation
        blocks = [[step, step + 1, compiling + seconds, 0.0], [step + 1, step + steps, (steps - 1) * seconds, 0.0]]
        ended = last + saving
        lines = [
            {"time": first, "run": run.id, "start": step, "ranks": []},
            {"time": last, "after": step, "blocks": blocks},
            {"time": ended - 1, "end": step + steps, "stopped": None},
        ]
        left_records(work, number, *lines)
        entries.append({"number": number, "started": began, "ended": ended})
        began, step = ended, step + steps
    chain = {"generation": "g", "code": "c", "strategy_source": "s", "adopted_from": None, "attempts": entries}
    (work / "chain.json").write_text(json.dumps(chain))


@pytest.mark.parametrize("compiling", [0.0, 25.0])
def test_a_jobs_times_are_read_from_its_records(tmp_path: Path, compiling: float) -> None:
    run = only(CPU, device="cpu")
    leave(tmp_path, run, [(30.0 - compiling, 2.0, 8.0, 100), (40.0 - compiling, 3.0, 4.0, 100)], compiling)
    found = job_times.of_run(tmp_path / "checkpoints" / run.id)
    expected = replace(TIMES, startup_seconds=30.0, between_seconds_per_step=0.05, saving_seconds=8.0, jobs=1)
    assert found == [expected, replace(expected, seconds_per_step=3.0, startup_seconds=40.0, saving_seconds=4.0)]
    mean, slowest = job_times.mean(found), job_times.slowest(found)
    assert (mean.seconds_per_step, mean.startup_seconds, mean.saving_seconds, mean.jobs) == (2.5, 35.0, 6.0, 2)
    assert (slowest.seconds_per_step, slowest.startup_seconds, slowest.saving_seconds) == (3.0, 40.0, 8.0)


def test_a_first_step_that_is_faster_than_later_ones_counts_as_they_do(tmp_path: Path) -> None:
    """Such as where a script's last step saves."""
    leave(tmp_path, run := only(CPU, device="cpu"), [(30.0, 2.0, 8.0, 100)], compiling=-1.0)
    (times,) = job_times.of_run(tmp_path / "checkpoints" / run.id)
    assert times.seconds_per_step == pytest.approx(1.99)


# How many jobs a training needs under a time limit, and what goodput to expect: against sums made by hand.


# 2 s a step, and evaluations of half a second for each step; 40 s to start and 10 s to save each job.
TIMES = JobTimes(seconds_per_step=2.0, startup_seconds=40.0, between_seconds_per_step=0.5, saving_seconds=10.0, jobs=3)


def test_a_training_of_several_jobs() -> None:
    """10 minutes less a fifth are 480 s, less 50 s around the steps: 430 s, 172 steps of 2.5 s. 1,000 steps: 6 jobs."""
    found = forecast(TIMES, 1000, 10)
    assert (found.jobs, found.steps_in_a_job) == (6, 172)
    assert (found.startup_seconds, found.useful_seconds, found.between_seconds) == (240.0, 2000.0, 500.0)
    assert found.saving_seconds == 60.0
    assert found.allocated_seconds == 2800.0
    assert [forecast(TIMES, steps, 10).jobs for steps in (344, 345)] == [2, 3]  # 344 steps fill two


def test_a_limit_without_time_for_a_step_makes_no_progress() -> None:
    """40 + 10 + 2.5 s are four fifths of 65.625 s."""
    assert least_minutes(TIMES) == pytest.approx(65.625 / 60)
    assert forecast(TIMES, 1000, 1) == TooShort(1, pytest.approx(65.625 / 60))
    just = forecast(TIMES, 1000, 65.625 / 60)
    assert (just.jobs, just.steps_in_a_job) == (1000, 1)
    assert just.useful_seconds / just.allocated_seconds == pytest.approx(2 / 52.5)


# The chain of a run: at which steps its segments end


def test_segments_end_at_planned_steps() -> None:
    found = planned(
        CPU,
        DDP | {"segment": {"epochs": 7}},
        DDP | {"devices_per_node": 4, "segment": {"steps": 440}},
        DDP | {"devices_per_node": 8, "segment": {"steps": 439}},
        segment={"steps": 200},
    )
    ends = {(run.strategy.name, run.shape.devices): found.segments(run) for run in found.runs}
    assert ends == {("cpu", 1): [200, 400, 440], ("ddp", 2): [154, 308, 440], ("ddp", 4): [440], ("ddp", 8): [439, 440]}
    (run,) = found.runs_of("cpu")
    assert [found.previous_end(run, end) for end in (200, 400, 440)] == [0, 200, 400]
    with pytest.raises(ValueError):
        found.previous_end(run, 300)


def test_minutes_need_a_measured_speed_and_become_fixed_steps(tmp_path: Path) -> None:
    asked = CPU | {"segment": {"minutes": 5}}
    found = planned(asked, DDP, repeats=2, results=tmp_path)
    run = found.runs_of("cpu")[0]
    assert [waiting.id for waiting in found.unmeasured] == [run.id]
    with pytest.raises(UserError, match=r"segment\.minutes: 5 needs a measured speed.* run 'snakemake plan' first"):
        found.segments(run)
    assert "needs a measured speed" in refusal(plan_json, found)
    speed = tmp_path / "speeds" / f"{run.setting_id}.json"
    speed.parent.mkdir()
    for damaged in ("", "[]", '{"seconds_per_step": 0}', '{"seconds_per_step": "fast"}'):
        speed.write_text(damaged)
        assert planned(asked, repeats=2, results=tmp_path).unmeasured  # it is measured again
    speed.write_text(json.dumps({"seconds_per_step": 1.0}))
    found = planned(asked, DDP, repeats=2, results=tmp_path)
    assert found.unmeasured == []
    speed.write_text(json.dumps({"seconds_per_step": 9.0}))
    assert found.segments(run) == [180, 360, 440]  # 300 s less a fifth, less 60 s to start; the plan stays as it was


def test_minutes_that_hold_no_step_are_refused_with_the_fewest_that_do() -> None:
    length = Length(epochs=1, steps_per_epoch=2000, total_steps=2000, evaluate_every_steps=2000, warmup_steps=0)
    assert segments.steps_in_a_job(Segment(minutes=2), length, 36) == 1
    told = refusal(segments.steps_in_a_job, Segment(minutes=1), length, 70)
    assert re.search(r"segment.minutes: 1 .*60 seconds to start and a step of 70 seconds.*at least 2\.8", told)


# What a plan costs, and a budget of device-hours that it keeps to


GPU = PARTITIONS[1] | {"gpus_per_node": 4, "cpus_per_node": 48}
PRICE = {"gpu_hour": 2.0, "cpu_hour": 0.1, "currency": "CHF"}


def made(results: Path, *, site: dict[str, Any] | None = None, **keys: Any) -> Plan:
    """Five repeats on one CPU: 5 runs, a gate, a reference and a spot check, an hour each; on a site a preflight."""
    given = {"repeats": 5, "device": "cpu", "comparisons": [CPU], **keys}
    known = site_in(results, **site) if site is not None else None
    return plan(load(given), root=ROOT, site=known, results=results, may="look", gpus=0, cpus=8)


def test_cores_are_devices_where_there_are_no_gpus(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert costs.whole(found) == Cost(jobs=8, cpu_hours=8, charged_core_hours=8)
    assert costs.whole(found).device_hours(found) == 8
    assert "device-hours: at most 8 planned, 0 used so far, at most 8 to do\n" in render(found)


def test_gpus_are_devices_and_so_are_the_cores_that_go_with_one(tmp_path: Path) -> None:
    """Six hours of a GPU: four runs, its gate, its reference, and its spot check makes seven; the preflight's 1/6."""
    comparisons = [{"strategy": "single_gpu", "cpus_per_task": 12}, CPU]
    found = made(tmp_path, site={"partitions": [PARTITIONS[0], GPU], "price": PRICE}, repeats=4, device="cuda",
                 comparisons=comparisons[:1])  # fmt: skip
    whole = costs.whole(found)
    assert whole.gpu_hours == pytest.approx(7 + 1 / 6)
    assert whole.device_hours(found) == pytest.approx(7 + 1 / 6)
    assert f"price: at most {2 * (7 + 1 / 6):.2f} " in render(found)
    on_cpus = made(tmp_path, site={"partitions": [PARTITIONS[0], GPU], "price": PRICE}, comparisons=comparisons[1:])
    hours = 8 + 1 / 6
    assert costs.whole(on_cpus).device_hours(on_cpus) == pytest.approx(hours / 20)  # by the prices, as in the answer
    printed = " ".join(render(on_cpus).split())
    assert "of jobs without GPUs, 20 CPU cores count as a device" in printed
    assert "price: at most 0.82 CHF planned, 0.00 CHF used so far, at most 0.82 CHF to do" in printed


def test_what_was_used_is_what_was_recorded(tmp_path: Path) -> None:
    found = made(tmp_path)
    first = found.runs[0]
    leave(tmp_path, first, [(30.0, 2.0, 8.0, 200), (30.0, 2.0, 8.0, 240)])
    seconds = 2 * (30 + 5 + 8) + 440 * 2
    (tmp_path / "runs" / first.id / "step-440.json").write_text("{}")
    (gate,) = found.gates
    benchmark = tmp_path / "benchmarks" / "gate" / f"{gate}.tsv"
    benchmark.parent.mkdir(parents=True)
    benchmark.write_text("s\th:m:s\tmax_rss\n36.0\t0:00:36\t1\n")
    assert costs.used(found).cpu_hours == pytest.approx((seconds + 36) / 3600)
    assert costs.left(found).jobs == 7  # the gate has not given its verdict


def test_the_last_repeats_of_all_settings_are_left_out_down_to_two(tmp_path: Path) -> None:
    two = [CPU, CPU | {"cpus_per_task": 2}]  # 5 × 3 hours of runs; proofs of 2 + 1 + 1 + 1 hours
    proofs = costs.whole(made(tmp_path, comparisons=two)).cpu_hours - 15
    assert proofs > 0
    found = made(tmp_path, comparisons=two, max_device_hours=proofs + 10, over_budget="drop_repeats")
    assert found.over_budget == ""
    assert sorted(run.repeat for run in found.runs) == [0, 0, 1, 1, 2, 2]
    assert [setting.repeats for setting in found.settings] == [3, 3]
    assert any("repeats 4 to 5 of each setting left out (over_budget: drop_repeats)" in w for w in found.warnings)
    least = made(tmp_path, comparisons=two, max_device_hours=1, over_budget="drop_repeats")
    assert sorted(run.repeat for run in least.runs) == [0, 0, 1, 1]
    assert f"({proofs + 6:g} with 2 repeats)" in least.over_budget
