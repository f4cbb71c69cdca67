"""What a plan costs, and a budget of device-hours that it keeps to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plans import CPU, ROOT
from relay.planning import costs
from relay.planning.config import load
from relay.planning.costs import Cost
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.planning.table import render
from relay.run_folder import chain
from relay.run_folder.places import Places
from relay.spec.site import load_site
from slurm_runs import PARTITIONS, site_file
from test_chain_forecasts import leave

pytest_plugins = ["plans"]
GPU = PARTITIONS[1] | {"gpus_per_node": 4, "cpus_per_node": 48}
PRICE = {"gpu_hour": 2.0, "cpu_hour": 0.1, "currency": "CHF"}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def made(results: Path, *, site: dict[str, Any] | None = None, **keys: Any) -> Plan:
    """Five repeats on one CPU: 5 runs, a gate, a reference and a spot check, an hour each; on a site a preflight."""
    given = {"repeats": 5, "device": "cpu", "comparisons": [CPU], **keys}
    known = load_site(str(site_file(results, **site)), ROOT) if site is not None else None
    return plan(load(given), root=ROOT, site=known, speeds=results / "speeds.json", record=True, gpus=0, cpus=8)


def test_cores_are_devices_where_there_are_no_gpus(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert costs.planned(found) == Cost(jobs=8, cpu_hours=8, cpu_only_hours=8)
    assert costs.planned(found).device_hours(found) == 8
    assert "device-hours: at most 8 planned, 0 used so far, at most 8 to do\n" in render(found)


def test_gpus_are_devices_and_so_are_the_cores_that_go_with_one(tmp_path: Path) -> None:
    """Six hours of a GPU: four runs, its gate, its reference, and its spot check makes seven; the preflight's 1/6."""
    comparisons = [{"strategy": "single_gpu", "cpus_per_task": 12}, CPU]
    found = made(tmp_path, site={"partitions": [PARTITIONS[0], GPU], "price": PRICE}, repeats=4, device="cuda",
                 comparisons=comparisons[:1])  # fmt: skip
    whole = costs.planned(found)
    assert whole.gpu_hours == pytest.approx(7 + 1 / 6)
    assert whole.device_hours(found) == pytest.approx(7 + 1 / 6)
    assert whole.price(found) == pytest.approx(2 * (7 + 1 / 6))
    on_cpus = made(tmp_path, site={"partitions": [PARTITIONS[0], GPU], "price": PRICE}, comparisons=comparisons[1:])
    hours = 8 + 1 / 6
    assert costs.planned(on_cpus).device_hours(on_cpus) == pytest.approx(hours / 12)
    assert costs.planned(on_cpus).price(on_cpus) == pytest.approx(0.1 * hours)
    printed = " ".join(render(on_cpus).split())
    assert "of jobs without GPUs, 12 CPU cores count as a device" in printed
    assert "price: at most 0.82 CHF planned, 0.00 CHF used so far, at most 0.82 CHF to do" in printed


def test_no_price_is_told_where_the_site_has_none_for_what_is_used(tmp_path: Path) -> None:
    for price in ({}, {"gpu_hour": 2.0}):
        found = made(tmp_path, site={"price": price})
        assert costs.planned(found).price(found) is None
        assert "price:" not in render(found)


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


def test_a_plan_within_its_budget_is_left_alone(tmp_path: Path) -> None:
    found = made(tmp_path, max_device_hours=8)
    assert (found.over_budget, len(found.runs), found.warnings) == ("", 5, [])


def test_a_plan_beyond_its_budget_is_refused_with_both_numbers(tmp_path: Path) -> None:
    found = made(tmp_path, max_device_hours=7.5)
    assert found.over_budget.startswith(
        "config: max_device_hours: 7.5 is less than the 8 that the jobs may take at most, by their time limits; lower "
    )
    assert len(found.runs) == 5


def test_the_last_repeats_of_all_settings_are_left_out_down_to_two(tmp_path: Path) -> None:
    two = [CPU, CPU | {"cpus_per_task": 2}]  # 5 × 3 hours of runs; proofs of 2 + 1 + 1 + 1 hours
    proofs = costs.planned(made(tmp_path, comparisons=two)).cpu_hours - 15
    assert proofs > 0
    found = made(tmp_path, comparisons=two, max_device_hours=proofs + 10, over_budget="drop_repeats")
    assert found.over_budget == ""
    assert sorted(run.repeat for run in found.runs) == [0, 0, 1, 1, 2, 2]
    assert [setting.repeats for setting in found.settings] == [3, 3]
    assert any("repeats 4 to 5 of each setting left out (over_budget: drop_repeats)" in w for w in found.warnings)
    least = made(tmp_path, comparisons=two, max_device_hours=1, over_budget="drop_repeats")
    assert sorted(run.repeat for run in least.runs) == [0, 0, 1, 1]
    assert f"({proofs + 6:g} with 2 repeats)" in least.over_budget


def test_a_repeat_that_has_begun_is_kept(tmp_path: Path) -> None:
    whole = made(tmp_path)
    chain.note_begun(Places(tmp_path, whole.runs[3].id).run, "a-start")
    found = made(tmp_path, max_device_hours=6, over_budget="drop_repeats")
    assert len(found.runs) == 4
    assert "(7 with 4 repeats)" in found.over_budget


def test_what_was_used_leaves_room_for_what_was_reserved(tmp_path: Path) -> None:
    """An hour each is reserved; the first two runs took a few minutes, and a further repeat fits."""
    budget = {"max_device_hours": 6, "over_budget": "drop_repeats"}
    for run in made(tmp_path, **budget).runs[:2]:
        leave(tmp_path, run, [(30.0, 0.1, 8.0, 440)])
        (tmp_path / "runs" / run.id / "step-440.json").write_text("{}")
    assert len(made(tmp_path, **budget).runs) == 4


def test_what_is_all_done_is_never_refused(tmp_path: Path) -> None:
    """Retries may go beyond the budget. The report can be made all the same."""
    done = made(tmp_path)
    for run in done.runs:
        leave(tmp_path, run, [(30.0, 20.0, 8.0, 440)])
        (tmp_path / "runs" / run.id / "step-440.json").write_text("{}")
    assert made(tmp_path, max_device_hours=6).over_budget.startswith("config: max_device_hours: 6 is less than")
    for path in (
        *(tmp_path / "equivalence" / "gates" / name / "verdict.json" for name in done.gates),
        *(tmp_path / "equivalence" / "references" / name / "reference.pt" for name in done.references),
        *(tmp_path / "equivalence" / "spot_checks" / name / "verdict.json" for name in done.spot_checks),
    ):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    found = made(tmp_path, max_device_hours=6)
    assert costs.left(found).jobs == 0
    assert costs.used(found).device_hours(found) > 6
    assert found.over_budget == ""


def test_what_was_spent_already_is_told(tmp_path: Path) -> None:
    first = made(tmp_path).runs[0]
    leave(tmp_path, first, [(30.0, 5.0, 8.0, 440)])
    (tmp_path / "runs" / first.id / "step-440.json").write_text("{}")
    assert "; 0.62 of them were used so far; lower" in made(tmp_path, max_device_hours=0.62).over_budget
