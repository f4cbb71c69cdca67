"""What jobs ask of a site: nodes, tasks, CPUs, memory and GPUs for every shape, and what is refused before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.planning import shapes
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.spec.site import load_site

STRATEGIES = str(Path(__file__).parent / "strategies")
GPU_NODES = {"name": "gpus", "device": "cuda", "gpu_name": "a100", "gpus_per_node": 4}
GPU_NODES |= {"cpus_per_node": 48, "memory_mb_per_node": 500_000, "max_nodes": 8, "max_minutes": 600}
CPU_NODES = {"name": "cpus", "device": "cpu", "cpus_per_node": 8, "max_nodes": 2, "max_minutes": 120}
SITE = {
    "name": "somewhere",
    "description": "a cluster",
    "verified": "never",
    "partitions": [CPU_NODES, GPU_NODES],
    "cpus_per_gpu": 12,
    "memory_mb_per_gpu": 32_000,
    "memory_mb_per_cpu": 1500,
}


@pytest.fixture
def planned(tmp_path: Path) -> Any:
    """A function that plans comparisons on a site: `site` is what differs from SITE, the rest goes into the config."""

    def make(*comparisons: dict[str, Any], site: dict[str, Any] | None = None, **config: Any) -> Plan:
        file = tmp_path / "somewhere.yaml"
        file.write_text(yaml.safe_dump(SITE | (site or {})))
        given = {"repeats": 1, "comparisons": list(comparisons), **config}
        return plan(load(given), site=load_site(str(file), tmp_path))

    return make


def asked(found: Plan) -> dict[str, Any]:
    """The resources of the plan's one run."""
    (run,) = found.runs
    job = found.job(run)
    assert job
    assert found.site
    return shapes.resources(job, found.site)


@pytest.mark.parametrize(("launcher", "nodes", "per_node"), [("srun", 2, 4), ("torchrun", 2, 2), ("torchrun", 1, 2)])
def test_every_shape_asks_for_its_processes(planned: Any, launcher: str, nodes: int, per_node: int) -> None:
    ddp = {"strategy": "ddp", "nodes": nodes, "devices_per_node": per_node, "launcher": launcher, "cpus_per_task": 2}
    given = asked(planned(ddp, device="cpu"))
    tasks_per_node = per_node if launcher == "srun" else 1
    assert (given["nodes"], given["tasks"]) == (nodes, nodes * tasks_per_node)
    assert given["cpus_per_task"] * tasks_per_node == 2 * per_node  # a node has the same CPUs, however they are started
    assert given["mem_mb"] == 2 * per_node * 1500
    assert given["slurm_extra"] == f"--ntasks-per-node={tasks_per_node}"
    assert (given["slurm_partition"], given["runtime"]) == ("cpus", 60)


def test_gpus_are_named_and_have_their_share_of_the_node(planned: Any) -> None:
    found = planned({"strategy": "ddp", "devices_per_node": 4})
    given = asked(found)
    assert "--gpus-per-node=a100:4" in given["slurm_extra"].split()
    assert given["slurm_partition"] == "gpus"
    assert found.runs[0].shape.cpus_per_task == 12
    assert found.runs[0].shape.backend == "nccl"
    assert (given["tasks"], given["cpus_per_task"], given["mem_mb"]) == (1, 48, 128_000)


def test_replicas_on_one_device_share_it_without_nccl(planned: Any) -> None:
    shared = {"strategy": "right_replicas_by_hand", "processes_per_device": 4, "launcher": "srun"}
    found = planned(shared, strategy_folders=[STRATEGIES])
    given = asked(found)
    assert (found.runs[0].shape.backend, found.runs[0].shape.world_size) == ("gloo", 4)
    assert "--gpus-per-node=a100:1" in given["slurm_extra"].split()
    assert (given["tasks"], given["cpus_per_task"]) == (4, 3)  # a GPU's 12 CPUs among its processes


def test_the_account_is_no_part_of_a_run_but_the_site_is(planned: Any) -> None:
    first = planned({"strategy": "cpu"}).runs[0].id
    assert planned({"strategy": "cpu"}, site={"account": "other"}).runs[0].id == first
    assert planned({"strategy": "cpu"}, site={"name": "elsewhere"}).runs[0].id != first
    assert plan(load({"repeats": 1, "comparisons": [{"strategy": "cpu"}]}), gpus=0).runs[0].id != first


def test_other_gpus_or_other_software_are_another_run(planned: Any) -> None:
    first = planned({"strategy": "single_gpu"}).runs[0].id
    renamed = {"partitions": [GPU_NODES | {"gpu_name": "h100"}]}
    assert planned({"strategy": "single_gpu"}, site=renamed).runs[0].id != first
    assert planned({"strategy": "single_gpu"}, site={"environment": {"mode": "current"}}).runs[0].id != first
    assert planned({"strategy": "single_gpu"}, site={"node_disk": "/scratch"}).runs[0].id == first


def test_sbatch_is_given_the_same(planned: Any) -> None:
    found = planned({"strategy": "ddp", "nodes": 2, "devices_per_node": 4}, site={"account": "a"})
    job = found.job(found.runs[0])
    assert shapes.sbatch_flags(job, found.site) == [
        *("--partition=gpus", "--account=a", "--nodes=2", "--ntasks=2", "--cpus-per-task=48", "--mem=128000M"),
        *("--time=60", "--ntasks-per-node=1", "--gpus-per-node=a100:4"),
    ]
