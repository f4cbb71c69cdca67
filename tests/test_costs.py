"""What a plan costs, and a budget of device-hours that it keeps to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plans import CPU, ROOT, plan
from relay.config.config import load
from relay.planning import costs
from relay.planning.costs import Cost
from relay.planning.plan import Plan
from relay.planning.table import render
from relay.spec.site import load_site
from slurm_runs import PARTITIONS, site_file
from test_chain_forecasts import leave

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")

GPU = PARTITIONS[1] | {"gpus_per_node": 4, "cpus_per_node": 48}
PRICE = {"gpu_hour": 2.0, "cpu_hour": 0.1, "currency": "CHF"}


def made(results: Path, *, site: dict[str, Any] | None = None, **keys: Any) -> Plan:
    """Five repeats on one CPU: 5 runs, a gate, a reference and a spot check, an hour each; on a site a preflight."""
    given = {"repeats": 5, "device": "cpu", "comparisons": [CPU], **keys}
    known = load_site(str(site_file(results, **site)), ROOT) if site is not None else None
    return plan(load(given), root=ROOT, site=known, results=results, may="look", gpus=0, cpus=8)


def test_cores_are_devices_where_there_are_no_gpus(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert costs.whole(found) == Cost(jobs=8, cpu_hours=8, charged_core_hours=8, price=None)
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
    assert whole.price == pytest.approx(2 * (7 + 1 / 6))
    on_cpus = made(tmp_path, site={"partitions": [PARTITIONS[0], GPU], "price": PRICE}, comparisons=comparisons[1:])
    hours = 8 + 1 / 6
    assert costs.whole(on_cpus).device_hours(on_cpus) == pytest.approx(hours / 20)  # by the prices, as in the answer
    assert costs.whole(on_cpus).price == pytest.approx(0.1 * hours)
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
