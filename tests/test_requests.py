"""What jobs ask of a site: nodes, tasks, CPUs, memory and GPUs for every shape; and what some clusters refuse."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plans
from plans import CPU, ROOT
from relay.commands import drive
from relay.driver.job_requests import JobRequests
from relay.planning.plan import Plan
from relay.slurm import allocation, shapes
from relay.slurm.counters import all_counters
from slurm_runs import site_in

CPU_NODES: dict[str, Any] = {"name": "cpus", "device": "cpu", "cpus_per_node": 64, "max_nodes": 4, "max_minutes": 600}
GPU_NODES: dict[str, Any] = {"name": "gpus", "device": "cuda", "gpu_name": "a100", "gpus_per_node": 4}
GPU_NODES |= {"cpus_per_node": 48, "memory_mb_per_node": 500_000, "max_nodes": 8, "max_minutes": 600}
SITE: dict[str, Any] = {"partitions": [CPU_NODES, GPU_NODES], "environment": {}, "cpus_per_gpu": 12}
SITE |= {"memory_mb_per_gpu": 32_000, "memory_mb_per_cpu": 1500}
DDP: dict[str, Any] = {"strategy": "ddp", "devices_per_node": 2, "launcher": "srun"}
STRATEGIES = str(Path(__file__).parent / "strategies")


Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Plans comparisons on a cluster with these changes."""

    def make(*comparisons: dict[str, Any], site: dict[str, Any] | None = None, **config: Any) -> Plan:
        return plans.planned(*comparisons, site=site_in(tmp_path, **SITE | (site or {})), results=tmp_path, **config)

    return make


def only_job(found: Plan) -> Any:
    (run,) = found.runs
    return found.job(run)


def flags_of(found: Plan) -> list[str]:
    return shapes.sbatch_flags(only_job(found), found.site)


# Memory


def test_no_memory_is_asked_for_where_the_partition_refuses_it(planned: Planned) -> None:
    found = planned(DDP, site={"partitions": [GPU_NODES | {"asks_memory": False}]})
    assert only_job(found).memory_mb is None
    # Snakemake refuses None here, and without the resource it would ask for a default of its own.
    assert JobRequests(found).resources(found.runs[0])["mem_mb"] == 0
    assert not [flag for flag in flags_of(found) if flag.startswith("--mem")]
    assert [flag for flag in flags_of(planned(DDP)) if flag.startswith("--mem")]


# Python


def test_another_python_than_the_cluster_takes_for_granted_is_told_with_what_gives_it(planned: Planned) -> None:
    other = next(each for each in ("3.11", "3.12") if each != "{}.{}".format(*sys.version_info))
    known = {"mode": "current", "driver_python": other, "install_after": f"module load python/{other}"}
    (warning,) = planned(CPU, site={"environment": known}).warnings
    assert warning.endswith(f"`module load python/{other}; make install PYTHON=python{other}`")
    assert not planned(CPU, site={"environment": known | {"mode": "wheels", "python": sys.executable}}).warnings


# GPUs


def test_gpus_are_asked_for_as_the_cluster_wants(planned: Planned) -> None:
    found = planned(DDP, site={"gpu_request": "gres"})
    asked = JobRequests(found).resources(found.runs[0])
    assert (asked["gres"], asked["tasks_per_gpu"], asked["slurm_extra"]) == ("gpu:a100:2", 0, "--ntasks-per-node=2")
    for words in (flags_of(found), allocation.srun(only_job(found), 2, 12)):
        assert [word for word in words if word.startswith(("--gpu", "--gres"))] == ["--gres=gpu:a100:2"]
    other = planned(DDP)
    assert JobRequests(other).resources(other.runs[0])["gres"] is None
    assert "--gpus-per-node=a100:2" in allocation.srun(only_job(other), 2, 12)


# Limits of a user


def test_a_job_that_alone_exceeds_a_limit_is_skipped_with_the_numbers(planned: Planned) -> None:
    limited = {"partitions": [CPU_NODES, GPU_NODES | {"limits": {"gpus": 2, "cpus": 32}}], "limits": {"nodes": 2}}
    found = planned(DDP | {"devices_per_node": [2, 4]}, CPU, site=limited)
    assert {run.shape.devices for run in found.runs} == {1, 2}
    (reason,) = found.skipped[0].reasons
    assert reason.endswith("no partition fits: partition gpus: 4 GPUs of a user's 2, 48 CPUs of a user's 32")
    (skipped,) = planned(DDP | {"nodes": 4, "devices_per_node": 1}, device="cpu", site=limited).skipped
    assert skipped.reasons[0].endswith("partition cpus: 4 nodes of a user's 2")


def test_every_job_counts_towards_the_limits_of_site_and_partition(planned: Planned) -> None:
    site = {"partitions": [CPU_NODES, GPU_NODES | {"limits": {"gpus": 8}}], "limits": {"jobs": 9, "cpus": 99}}
    found = planned(DDP | {"nodes": 2}, site=site)
    (run,) = found.runs
    (reference,) = found.references.values()

    def counts(of: Any) -> dict[str, Any]:
        return {name: value for name, value in JobRequests(found).resources(of).items() if name.startswith("user_")}

    assert counts(run) == {"user_jobs": 1, "user_cpus": 48, "user_1_gpus": 4}
    assert counts(reference) == {"user_jobs": 1, "user_cpus": reference.shape.cpus_per_node, "user_1_gpus": 1}
    most = {name: counter.most for name, counter in all_counters(found.site).items()}
    assert most == {"user_jobs": 9, "user_cpus": 99, "user_1_gpus": 8}


# Whole nodes


def test_a_job_takes_all_gpus_of_a_whole_node_and_its_steps_those_that_they_use(planned: Planned) -> None:
    found = planned(DDP, site={"partitions": [GPU_NODES | {"whole_nodes": True}], "gpu_request": "gres"})
    assert "--gres=gpu:a100:4" in flags_of(found)
    assert "--gres=gpu:a100:2" in allocation.srun(only_job(found), 2, 12)
    (warning,) = found.warnings
    assert "uses 2 of the 4 GPUs and 24 of the 48 CPUs of each node" in warning


# Short jobs


def test_a_driver_that_is_a_job_keeps_its_cluster_and_none_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JOB_ID", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "its")
    kept = {name for name in drive.outside_of_slurm() if name.startswith(("SLURM_", "SBATCH_"))}
    assert kept == {"SLURM_CONF", "SLURM_CLUSTERS"}


def test_a_driver_that_submits_nothing_works_in_its_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    variables: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execvpe", lambda *given: variables.append(given[2]))
    for profile in ("local", "slurm"):
        drive.here(["--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles" / profile)])
    assert ["SLURM_JOB_ID" in each for each in variables] == [True, False]


# Every shape, and what makes another run of it


def asked(found: Plan) -> dict[str, Any]:
    """The resources of the plan's one run."""
    return shapes.resources(only_job(found), found.site)


@pytest.mark.parametrize(("launcher", "nodes", "per_node"), [("srun", 2, 4), ("torchrun", 2, 2), ("torchrun", 1, 2)])
def test_every_shape_asks_for_its_processes(planned: Planned, launcher: str, nodes: int, per_node: int) -> None:
    ddp = {"strategy": "ddp", "nodes": nodes, "devices_per_node": per_node, "launcher": launcher, "cpus_per_task": 2}
    given = asked(planned(ddp, device="cpu"))
    tasks_per_node = per_node if launcher == "srun" else 1
    assert (given["nodes"], given["tasks"]) == (nodes, nodes * tasks_per_node)
    assert given["cpus_per_task"] * tasks_per_node == 2 * per_node  # a node has the same CPUs, however they are started
    assert given["mem_mb"] == 2 * per_node * 1500
    assert given["slurm_extra"] == f"--ntasks-per-node={tasks_per_node}"
    assert (given["slurm_partition"], given["runtime"]) == ("cpus", 60)


def test_replicas_on_one_device_share_it_without_nccl(planned: Planned) -> None:
    shared = {"strategy": "right_replicas_by_hand", "processes_per_device": 4, "launcher": "srun"}
    found = planned(shared, strategy_folders=[STRATEGIES])
    given = asked(found)
    assert (found.runs[0].shape.backend, found.runs[0].shape.world_size) == ("gloo", 4)
    assert "--gpus-per-node=a100:1" in given["slurm_extra"].split()
    assert (given["tasks"], given["cpus_per_task"]) == (4, 3)  # a GPU's 12 CPUs among its processes


def test_another_site_with_other_gpus_or_software_is_another_run_and_an_account_or_a_disk_is_none(
    planned: Planned,
) -> None:
    def run_on(**site: Any) -> str:
        return planned({"strategy": "single_gpu"}, site=site).runs[0].id

    h100 = [GPU_NODES | {"gpu_name": "h100"}]
    assert run_on() == run_on(account="other") == run_on(node_disk="/scratch")
    other = {run_on(name="elsewhere"), run_on(partitions=h100), run_on(environment={"mode": "current"})}
    assert len(other - {run_on()}) == 3
    assert planned(CPU).runs[0].id != plans.only(CPU).id
