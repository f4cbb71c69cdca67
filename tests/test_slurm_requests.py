"""On a real Slurm cluster: jobs without a request for memory, GPUs by --gres, whole nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_slurm import MiniSlurm, Node, Partition
from slurm_runs import PARTITIONS, planned_there, site_file, slurm_snakemake

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
        for name in planned_there(config, site).preflights
    ]
    return jobs, collected, printed


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
