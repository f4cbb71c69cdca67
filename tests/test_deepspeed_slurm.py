"""DeepSpeed in real Slurm jobs: its wheel built ahead, installed on the nodes' own disks, which no network leads to."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import debian_packages
import stacks
from mini_slurm import NODE_DISK, MiniSlurm
from slurm_runs import WHEELS, site_file, slurm_snakemake

SHORT = {"device": "cpu", "repeats": 1, "epochs": 0.3, "runtime_minutes": 20, "warmup_steps": 2, "gate": {"steps": 20}}
SHORT |= {"spot_checks": {"random_steps": 0, "hops": 0, "end": False}, "task": "lenet-digits"}

STRATEGIES = ("zero1", "zero2", "zero3", "zero3_offload_cpu", "zero3_offload_nvme", "lightning_zero3")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_trains_from_its_wheel_over_two_nodes(cluster: MiniSlurm, tmp_path: Path) -> None:
    """No other test starts DeepSpeed under Slurm."""
    stacks.require("deepspeed")
    debian_packages.require()
    site = site_file(tmp_path, environment=WHEELS, network_interface="eth0")
    comparisons = [{"strategy": name, "nodes": 2, "launcher": "srun"} for name in STRATEGIES]
    status, printed = slurm_snakemake(
        cluster, tmp_path, SHORT | {"comparisons": comparisons}, site=site, timeout_seconds=1700
    )
    assert status == 0, printed
    with (tmp_path / "results/comparison.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert sorted(row["strategy"] for row in rows) == sorted(STRATEGIES)
    assert {row["status"] for row in rows} == {"done"}
    assert {row["equivalent"] for row in rows} == {"true"}
    on_disk = {row["strategy"] for row in rows if float(row["disk_bytes_written"] or 0) > 0}
    assert on_disk == {"zero3_offload_nvme"}
    logs = [path.read_text() for path in (tmp_path / "results/logs").rglob("*.log")]
    assert any(f"environment: {NODE_DISK}" in text and "deepspeed-" in text for text in logs)
