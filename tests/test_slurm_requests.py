"""On a real Slurm cluster: jobs without a request for memory, GPUs by --gres, whole nodes, and limits of a user."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mini_slurm import MiniSlurm, Node, Partition
from relay.planning.config import load
from relay.planning.planner import plan
from relay.spec.site import load_site
from slurm_runs import PARTITIONS, site_file, slurm_snakemake

ROOT = Path(__file__).resolve().parents[1]
CONFIG: dict[str, Any] = {"repeats": 1, "runtime_minutes": 10}
DDP: dict[str, Any] = {"strategy": "ddp", "devices_per_node": 2, "launcher": "srun"}

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(600)]


def looked(
    cluster: MiniSlurm, folder: Path, config: dict[str, Any], site: Path
) -> tuple[list[dict[str, str]], list[dict[str, Any]], str]:
    """The jobs of a call of `snakemake preflight`, what their ranks collected, and what was printed."""
    before = {job["JobId"] for job in cluster.jobs()}
    status, printed = slurm_snakemake(cluster, folder, config, "preflight", "--retries", "0", site=site)
    # The cluster's GPUs are no real ones, so that a look at them fails.
    assert status == (1 if config["device"] == "cuda" else 0), printed
    jobs = [job for job in cluster.jobs() if job["JobId"] not in before and "Comment" in job]
    collected = [
        json.loads((folder / f"results/preflight/{name}/collected.json").read_text())
        for name in plan(load(config), site=load_site(str(site), ROOT)).preflights
    ]
    return jobs, collected, printed


@pytest.mark.slow
def test_steps_see_the_gpus_that_they_use_of_a_whole_node(tmp_path_factory: pytest.TempPathFactory) -> None:
    """GPUs by --gres, and no request for memory."""
    folder = tmp_path_factory.mktemp("whole")
    partition = Partition("gpu", ("g1",), default=True, whole_nodes=True)
    with MiniSlurm(folder / "cluster", [Node("g1", gpus=4)], [partition], namespaces=False) as cluster:
        partitions = [PARTITIONS[1] | {"whole_nodes": True, "asks_memory": False}]
        site = site_file(folder, partitions=partitions, cpus_per_gpu=1, gpu_request="gres", node_disk="/tmp")
        (job,), (told,), printed = looked(cluster, folder, CONFIG | {"device": "cuda", "comparisons": [DDP]}, site)
    assert (job["NumTasks"], job["NumCPUs"]) == ("2", "8")
    assert job["TresPerNode"].endswith("gpu:fake:4")
    assert "MinMemoryNode" not in job  # the cluster gives a default for each CPU
    assert "memory information" not in printed
    assert [len(rank["environment"]["CUDA_VISIBLE_DEVICES"].split(",")) for rank in told["ranks"]] == [2, 2]


@pytest.mark.long
def test_no_more_is_in_the_queue_than_a_user_may_have(cluster: MiniSlurm, tmp_path: Path) -> None:
    """Only this holds the queue of a real Slurm against a user's limits."""
    site = site_file(tmp_path, limits={"cpus": 3}, partitions=[PARTITIONS[0] | {"limits": {"jobs": 2}}])
    shapes = [{"strategy": "cpu", "cpus_per_task": [1, 2]}, DDP]
    jobs, _, printed = looked(cluster, tmp_path, CONFIG | {"device": "cpu", "comparisons": shapes}, site)
    assert sorted(int(job["NumCPUs"]) for job in jobs) == [1, 2, 2]
    assert "3 runs at once would take 5 CPUs, of which a user may have 3 at once" in printed
    assert "3 runs at once would take 3 jobs in partition cpu, of which a user may have 2 at once" in printed
    for job in jobs:
        now = submitted(job)
        others = [other for other in jobs if submitted(other) <= now < ended(other)]
        assert sum(int(other["NumCPUs"]) for other in others) <= 3
        assert len(others) <= 2


def submitted(job: dict[str, str]) -> datetime:
    return datetime.fromisoformat(job["SubmitTime"])


def ended(job: dict[str, str]) -> datetime:
    return datetime.fromisoformat(job["EndTime"])
