"""On a real Slurm cluster: jobs without a request for memory, GPUs by --gres, whole nodes, and limits of a user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_slurm import MiniSlurm
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
def test_gpus_by_gres_and_no_request_for_memory(cluster: MiniSlurm, tmp_path: Path) -> None:
    partitions = [p | {"asks_memory": False} for p in PARTITIONS]
    site = site_file(tmp_path, partitions=partitions, gpu_request="gres", cpus_per_gpu=2)
    config = CONFIG | {"device": "cuda", "comparisons": [DDP]}
    (job,), (told,), printed = looked(cluster, tmp_path, config, site)
    assert (job["Partition"], job["NumNodes"], job["NumTasks"], job["CPUs/Task"]) == ("gpu", "1", "2", "2")
    assert job["TresPerNode"].endswith("gpu:fake:2")
    assert "MinMemoryNode" not in job  # the cluster gives a default for each CPU
    assert [rank["environment"]["CUDA_VISIBLE_DEVICES"] for rank in told["ranks"]] == ["0,1", "0,1"]
    assert "memory information" not in printed
