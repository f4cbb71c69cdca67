"""The plan: every combination runs, on the devices that are there, and what comes out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from plans import CPU, DDP, only, planned, strategy_folder
from relay.planning import costs, table
from short_tasks import shipped

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")


# What runs


def test_a_run_is_resolved_to_the_last_value() -> None:
    run = only(DDP | {"cpus_per_task": 3, "loader": "dataloader", "data_workers": 2}, epochs=2)
    assert (run.strategy.file, run.stack, run.strategy.divides) == (
        "scripts/relay/strategies/ddp.py",
        "torch",
        ("samples",),
    )
    assert (run.shape.device, run.shape.backend, run.shape.launcher) == ("cpu", "gloo", "direct")
    assert (run.shape.processes_per_node, run.shape.world_size, run.shape.devices) == (2, 2, 2)
    assert (run.shape.cpus_per_task, run.shape.threads, run.shape.interop_threads) == (3, 3, 1)
    assert (run.feeding.loader, run.feeding.data_workers, run.computation.precision) == ("dataloader", 2, "fp32")
    assert (run.dataset.name, run.dataset.train_count, run.batch.global_batch_size) == ("digits", 1437, 64)
    assert (run.length.steps_per_epoch, run.length.total_steps, run.length.evaluate_every_steps) == (22, 44, 22)


def test_axes_expand_to_every_combination() -> None:
    table = planned(
        CPU | {"cpus_per_task": [1, 2], "loader": ["resident", "dataloader"], "global_batch_size": [32, 64]}
    )
    found = {(run.shape.cpus_per_task, run.feeding.loader, run.batch.global_batch_size) for run in table.runs}
    assert found == {(c, loader, b) for c in (1, 2) for loader in ("resident", "dataloader") for b in (32, 64)}
    assert len(table.runs) == len({run.id for run in table.runs}) == 8
    assert len({table.gate(run) for run in table.runs}) == 1  # whatever the batch, the CPUs and the loader


def test_repeats_are_interleaved_in_random_order_with_their_own_seeds() -> None:
    comparisons = [CPU | {"cpus_per_task": [1, 2, 3, 4, 5, 6]}, CPU | {"cpus_per_task": 7, "repeats": 1}]
    found = planned(*comparisons, repeats=3, seed=40)
    assert [run.repeat for run in found.runs] == [0] * 7 + [1] * 6 + [2] * 6
    assert all(run.seed == 40 + run.repeat for run in found.runs)
    orders = [[run.setting_id for run in found.runs if run.repeat == repeat] for repeat in range(3)]
    assert set(orders[1]) == set(orders[2])
    assert orders[1] != orders[2]
    assert [r.id for r in planned(*comparisons, repeats=3, seed=40).runs] == [r.id for r in found.runs]
    assert [r.shape.cpus_per_task for r in planned(*comparisons, repeats=3, seed=41).runs] != [
        r.shape.cpus_per_task for r in found.runs
    ]


def test_batch_per_device_and_the_scaling_of_the_learning_rate() -> None:
    found = planned(
        DDP
        | {
            "devices_per_node": [2, 8],
            "batch_per_device": 32,
            "learning_rate_scaling": ["none", "linear", "square_root"],
        }
    )
    rates = {(r.shape.devices, r.batch.learning_rate_scaling): r.task.learning_rate for r in found.runs}
    assert {run.batch.global_batch_size for run in found.runs} == {64, 256}
    own = shipped("lenet-digits").task.learning_rate  # which goes with a global batch of 64
    assert rates[2, "none"] == rates[2, "linear"] == rates[2, "square_root"] == rates[8, "none"] == own
    assert rates[8, "linear"] == pytest.approx(4 * own)
    assert rates[8, "square_root"] == pytest.approx(2 * own)


def test_what_is_asked_for_twice_runs_once() -> None:
    found = planned(CPU, CPU | {"threads": 1, "repeats": 2}, CPU | {"loader": ["resident", "resident"]})
    assert len(found.runs) == 2
    assert found.warnings == [
        f"{found.runs[0].setting_id} is in comparisons[0] and comparisons[1]: runs once, 2 repeats",
        f"{found.runs[0].setting_id} is in comparisons[0] and comparisons[2]: runs once, 2 repeats",
    ]
    with_segments = planned(CPU, CPU | {"segment": {"steps": 50}})
    assert with_segments.warnings[0].endswith("runs once, 1 repeats, with the segment of the former")
    assert with_segments.segments(with_segments.runs[0]) == [440]


# Devices


def test_auto_takes_the_gpus_that_are_there_and_counts_them(tmp_path: Path) -> None:
    folder = strategy_folder(tmp_path, "one_process", "processes='one', devices=('cuda',), divides=('samples',)")
    comparisons = [
        CPU,
        {"strategy": "single_gpu", "devices_per_node": [1, 2]},
        DDP | {"devices_per_node": [2, 4]},
    ]
    comparisons.append({"strategy": "one_process", "devices_per_node": 2})
    found = planned(*comparisons, gpus=2, strategy_folders=[folder])
    shapes = {
        (r.strategy.name, r.shape.device, r.shape.backend, r.shape.launcher, r.shape.devices, r.shape.world_size)
        for r in found.runs
    }
    assert shapes == {
        ("cpu", "cpu", "gloo", "none", 1, 1),  # for comparison: CPUs are there, too
        ("single_gpu", "cuda", "nccl", "none", 1, 1),
        ("ddp", "cuda", "nccl", "direct", 2, 2),
        ("one_process", "cuda", "nccl", "none", 2, 1),
    }
    assert ["; ".join(skipped.reasons) for skipped in found.skipped] == [
        "single_gpu uses one device, devices_per_node is 2",
        "devices_per_node is 4, 2 GPUs can be used here",
    ]


# What comes out


def test_the_table_adds_up_and_fits_a_terminal() -> None:
    found = planned(
        CPU | {"cpus_per_task": 2},
        DDP | {"segment": {"epochs": 7}, "cpus_per_task": 3},
        {"strategy": "single_gpu"},
        repeats=4,
        runtime_minutes=30,
    )
    # the reference on 1 CPU, cpu's gate on 2, ddp's on 6; 4 jobs of 2 CPUs; 12 of 6; two spot checks; half an hour
    # each: (1 + 2 + 6 + 8 + 72 + 2 + 6) / 2
    assert costs.planned(found) == costs.Cost(jobs=21, cpu_hours=48.5, charged_core_hours=48.5, price=None)
    text = table.render(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "21 jobs; at most 48.5 CPU-hours and 0 GPU-hours per try" in text
    assert "skipped: single_gpu: needs a GPU, device is cpu; use cpu instead" in text
    (row,) = [line for line in text.splitlines() if line.startswith("ddp ")]
    assert row.split()[-6:] == ["4", "3", "12", "440", "6", "0"]
