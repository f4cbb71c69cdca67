"""The plan: every combination runs, on the devices that are there, or is skipped with the reason and what would do."""

from pathlib import Path
from typing import Any

import pytest

from plans import CPU, DDP, ROOT, plan, planned, reasons, strategy_folder
from relay.base.errors import UserError
from relay.config import comparisons
from relay.config.config import load
from relay.planning import costs, planner
from relay.spec.strategy_files import find
from short_tasks import shipped

pytestmark = pytest.mark.usefixtures("in_the_project")


# What runs


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
    scalings = ["none", "linear", "square_root"]
    found = planned(DDP | {"devices_per_node": [2, 8], "batch_per_device": 32, "learning_rate_scaling": scalings})
    rates = {(r.shape.devices, r.batch.learning_rate_scaling): r.task.learning_rate for r in found.runs}
    assert {run.batch.global_batch_size for run in found.runs} == {64, 256}
    own = shipped("lenet-digits").task.learning_rate  # which goes with a global batch of 64
    assert rates[2, "none"] == rates[2, "linear"] == rates[2, "square_root"] == rates[8, "none"] == own
    assert rates[8, "linear"] == pytest.approx(4 * own)
    assert rates[8, "square_root"] == pytest.approx(2 * own)


# Devices


def test_auto_takes_the_gpus_that_are_there_and_counts_them(tmp_path: Path) -> None:
    folder = strategy_folder(tmp_path, "one_process", "processes='one', devices=('cuda',), divides=('samples',)")
    one, several = {"strategy": "single_gpu", "devices_per_node": [1, 2]}, DDP | {"devices_per_node": [2, 4]}
    of_one_process = {"strategy": "one_process", "devices_per_node": 2}
    found = planned(CPU, one, several, of_one_process, gpus=2, strategy_folders=[folder])
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


def test_the_cost_adds_up() -> None:
    found = planned(
        CPU | {"cpus_per_task": 2},
        DDP | {"segment": {"epochs": 7}, "cpus_per_task": 3},
        {"strategy": "single_gpu"},
        repeats=4,
        runtime_minutes=30,
    )
    # the reference on 1 CPU, cpu's gate on 2, ddp's on 6; 4 jobs of 2 CPUs; 12 of 6; two spot checks; half an hour
    # each: (1 + 2 + 6 + 8 + 72 + 2 + 6) / 2
    assert costs.whole(found) == costs.Cost(jobs=21, cpu_hours=48.5, charged_core_hours=48.5)


# What is skipped, and why


def of(strategy: str, devices: int, **values: Any) -> dict[str, Any]:
    return {"strategy": strategy, "devices_per_node": devices, **values}


TWO_SIZES = {"global_batch_size": 64, "batch_per_device": 16}
ON_ONE_MACHINE = "2 nodes: needs a cluster profile, or an allocation; on one machine give devices_per_node"
LOSS = "loss_parallel is for cross entropy of the model's outputs, and the loss of linear-random10 is not that"
NO_MPI = "which PyTorch's own packages are not, and this is no cluster (environment.torch_mpi); use gloo"


@pytest.mark.parametrize(
    ("comparison", "where", "reason"),
    [
        (CPU | {"threads": 4, "cpus_per_task": 2}, {}, "threads 4 exceed cpus_per_task 2"),
        (DDP | {"devices_per_node": 3}, {}, "global_batch_size 64 is not divisible by 3 processes"),
        (DDP | TWO_SIZES, {}, "global_batch_size 64 contradicts batch_per_device 16; give one"),
        (DDP | {"nodes": 2}, {}, ON_ONE_MACHINE),
        (CPU | {"nodes": 2}, {}, "cpu is one process, which cannot span 2 nodes"),
        (CPU | {"global_batch_size": 1438}, {}, "global_batch_size 1438 exceeds digits's 1437 training samples"),
        (DDP | {"backend": "nccl"}, {}, "backend nccl needs a GPU for each process, device is cpu; use gloo"),
        (DDP | {"strategy": "fsdp", "backend": "mpi"}, {"gpus": 2}, "fsdp works with nccl or gloo, backend is mpi"),
        (DDP | {"backend": "mpi"}, {}, f"backend mpi needs a torch that was built with MPI, {NO_MPI}"),
        ({"strategy": "fsdp"}, {}, "fsdp needs at least 2 devices, has 1; give devices_per_node: 2"),
        (of("pipeline", 2, options={"micro_batches": 3}), {}, "are not divisible by micro_batches 3"),
        (of("tensor_parallel", 3), {"task": "gpt-tiny"}, "(block0.query) of gpt-tiny are not divisible by 3 processes"),
        (of("expert_parallel", 8), {"task": "gpt-moe-tiny"}, "divides experts over 8 processes, gpt-moe-tiny has 4"),
        (of("tensor_parallel", 2, options={"loss_parallel": True}), {"task": "linear-random10"}, LOSS),
        (CPU | {"channels_last": True}, {"task": "gpt-tiny"}, "channels_last is for images"),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(comparison: dict[str, Any], where: Any, reason: str) -> None:
    (told,) = reasons(comparison, **where)
    assert reason in told


def test_lengths_that_leave_nothing_are_named() -> None:
    assert reasons(CPU, epochs=0.01) == ["epochs 0.01 are less than one step; an epoch has 22 steps"]
    (reason,) = reasons(CPU, epochs=1, warmup_steps=22)
    assert reason.endswith("leave none of 22 steps to be timed; allowed: at most 21, or more epochs")
    (warning,) = planned(CPU | {"segment": {"steps": 10}}).warnings
    assert warning.endswith("(comparisons[0]) has jobs of 10 steps: warmup_steps 10 leave no step to be timed")


# What is refused


def test_unknown_strategies_and_options_have_one_line(tmp_path: Path) -> None:
    folder = strategy_folder(tmp_path, "hooked", "options={'hook': 'none', 'bucket_mb': 25, 'views': False}")
    options = "3 is not allowed, hooked has no such option; did you mean 'bucket_mb'? allowed: bucket_mb, hook, views"
    for line, comparison in {
        "strategy: 'dpp' is unknown; did you mean 'ddp'? docs/strategies.md has all": {"strategy": "dpp"},
        f"options.bucketmb: {options}": {"strategy": "hooked", "options": {"bucketmb": 3}},
    }.items():
        with pytest.raises(UserError) as caught:
            planned(CPU, comparison, strategy_folders=[folder])
        (found,) = str(caught.value).splitlines()
        assert found.startswith(f"config: comparisons[1].{line}")
    Path(folder, "Mine.py").write_bytes(b"# \xe4")
    with pytest.raises(UserError, match=r"Mine\.py: is not UTF-8 text; save the file in the encoding UTF-8"):
        planned(CPU, {"strategy": "Mine"}, strategy_folders=[folder])


# A plan is counted before it is expanded

MANY = list(range(1, 1001))


def test_too_many_runs_are_refused_before_they_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    def expand(*_: object) -> None:
        raise AssertionError("expanded")

    monkeypatch.setattr(comparisons, "expand", expand)
    monkeypatch.setattr(planner, "expand", expand)
    comparison = {"strategy": "cpu", "cpus_per_task": MANY, "task_options": {"side": MANY}, "threads": [1, 2]}
    config = load({"repeats": 3, "comparisons": [{"strategy": "cpu"}, comparison]})
    with pytest.raises(UserError) as caught:
        plan(config)
    assert str(caught.value) == (
        "config: comparisons: 6,000,003 runs are not allowed; allowed: at most 10,000 (most_jobs); the most are of "
        "comparisons[1], cpu: 1,000 cpus_per_task × 2 threads × 1,000 task_options.side × 3 repeats = 6,000,000; "
        "give fewer values, or raise most_jobs"
    )


# The library by which processes communicate is an axis


@pytest.mark.slow
def test_two_backends_are_two_settings_with_a_gate_each_and_one_reference() -> None:
    found = planned(DDP | {"backend": [None, "gloo"]}, gpus=2)
    assert [run.setting.shape.backend for run in found.settings] == ["nccl", "gloo"]
    assert (len(found.gates), len(found.references)) == (2, 1)


def test_lossy_options_are_known_by_their_values() -> None:
    ddp = {"strategy": "ddp", "devices_per_node": 2, "options": {"compression": ["none", "fp16"]}}
    told = {run.strategy.options["compression"]: run.strategy.lossy for run in planned(ddp).runs}
    assert told == {"none": {}, "fp16": {"compression": 2e-3}}


@pytest.mark.slow
def test_every_file_of_the_proof_plans_every_strategy() -> None:
    """A strategy that nobody proves would be proven to nobody."""
    import yaml

    asked: set[str] = set()
    for path in sorted((ROOT / "config" / "proof").glob("*.yaml")):
        made = plan(load(yaml.safe_load(path.read_text())), gpus=0)
        asked.update(made.strategies)
        here = {skipped.setting.strategy.name for skipped in made.skipped}
        without = {"single_gpu", "data_parallel", "model_parallel_in_process"}  # GPUs
        assert here <= without | {"zero3_offload_nvme"}, here  # libaio
    assert asked == set(find())
