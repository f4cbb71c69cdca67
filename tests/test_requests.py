"""What some clusters refuse: a request for memory, or for GPUs in the usual way; too many jobs at once; short jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import drive
from relay.planning import shapes
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.slurm import allocation
from relay.spec.job import Job
from relay.spec.site import load_site
from relay.spec.user_limits import all_counters

CPU_NODES: dict[str, Any] = {"name": "cpus", "device": "cpu", "cpus_per_node": 64, "max_minutes": 600}
GPU_NODES: dict[str, Any] = {"name": "gpus", "device": "cuda", "gpu_name": "a100", "gpus_per_node": 4}
GPU_NODES |= {"cpus_per_node": 48, "max_nodes": 8, "max_minutes": 600}
SITE: dict[str, Any] = {"name": "somewhere", "description": "a cluster", "verified": "in a test"}
SITE |= {"partitions": [CPU_NODES, GPU_NODES], "cpus_per_gpu": 12, "environment": {"mode": "current"}}
DDP: dict[str, Any] = {"strategy": "ddp", "devices_per_node": 2, "launcher": "srun"}
CPU: dict[str, Any] = {"strategy": "cpu"}

Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Plans comparisons on a cluster with these changes, with the speeds of `speeds.json`."""

    def make(*comparisons: dict[str, Any], site: dict[str, Any] | None = None, **config: Any) -> Plan:
        file = tmp_path / "somewhere.yaml"
        file.write_text(yaml.safe_dump(SITE | (site or {})))
        given = {"repeats": 1, "comparisons": list(comparisons), **config}
        return plan(load(given), site=load_site(str(file), tmp_path), speeds=tmp_path / "speeds.json")

    return make


def only_job(found: Plan) -> Job:
    (run,) = found.runs
    job = found.job(run)
    assert job
    return job


def flags_of(found: Plan) -> list[str]:
    assert found.site
    return shapes.sbatch_flags(only_job(found), found.site)


# Memory


def test_no_memory_is_asked_for_where_the_partition_refuses_it(planned: Planned) -> None:
    found = planned(DDP, site={"partitions": [GPU_NODES | {"asks_memory": False}]})
    assert only_job(found).memory_mb is None
    # Snakemake refuses None here, and without the resource it would ask for a default of its own.
    assert found.resources(found.runs[0])["mem_mb"] == 0
    assert not [flag for flag in flags_of(found) if flag.startswith("--mem")]
    assert [flag for flag in flags_of(planned(DDP)) if flag.startswith("--mem")]


# Python


def test_another_python_than_the_cluster_takes_for_granted_is_told_with_what_gives_it(planned: Planned) -> None:
    other = next(each for each in ("3.11", "3.12") if each != "{}.{}".format(*sys.version_info))
    known = {"mode": "current", "driver_python": other, "install_after": f"module load python/{other}"}
    (warning,) = planned(CPU, site={"environment": known}).warnings
    assert warning.endswith(f"`module load python/{other}; make install PYTHON=python{other}`")
    assert not planned(CPU, site={"environment": known | {"python": "/opt/python"}}).warnings


# GPUs


def test_gpus_are_asked_for_as_the_cluster_wants(planned: Planned) -> None:
    found = planned(DDP, site={"gpu_request": "gres"})
    asked = found.resources(found.runs[0])
    assert (asked["gres"], asked["tasks_per_gpu"], asked["slurm_extra"]) == ("gpu:a100:2", 0, "--ntasks-per-node=2")
    for words in (flags_of(found), allocation.srun(only_job(found), 2, 12)):
        assert [word for word in words if word.startswith(("--gpu", "--gres"))] == ["--gres=gpu:a100:2"]
    other = planned(DDP)
    assert "gres" not in other.resources(other.runs[0])
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
        return {name: value for name, value in found.resources(of).items() if name.startswith("user_")}

    assert counts(run) == {"user_jobs": 1, "user_cpus": 48, "user_1_gpus": 4}
    assert counts(reference) == {"user_jobs": 1, "user_cpus": reference.shape.cpus_per_node, "user_1_gpus": 1}
    assert found.site
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
