"""Horovod in real Slurm jobs: its wheel built ahead, installed on the nodes' own disks, which no network leads to."""

from __future__ import annotations

from pathlib import Path

import pytest

import debian_packages
import stacks
from mini_slurm import NODE_DISK, MiniSlurm
from results_tree import rows
from slurm_runs import WHEELS, site_file, slurm_snakemake

SHORT = {"device": "cpu", "repeats": 1, "epochs": 0.3, "runtime_minutes": 20, "warmup_steps": 2, "gate": {"steps": 20}}
SHORT |= {"spot_checks": {"random_steps": 0, "hops": 0, "end": False}, "task": "lenet-digits"}


@pytest.fixture(autouse=True)
def _asked_for() -> None:
    stacks.require("horovod")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_trains_from_its_wheel_by_every_launcher(cluster: MiniSlurm, tmp_path: Path) -> None:
    """No other test starts Horovod under Slurm."""
    comparisons = [
        {"strategy": "horovod", "nodes": 2, "launcher": ["srun", "torchrun"]},
        {"strategy": "horovod", "devices_per_node": 2, "launcher": ["spawn", "horovodrun"]},
    ]
    debian_packages.require()
    site = site_file(tmp_path, environment=WHEELS, network_interface="eth0")
    config = SHORT | {"comparisons": comparisons}
    status, printed = slurm_snakemake(cluster, tmp_path, config, site=site, timeout_seconds=1700)
    assert status == 0, printed
    found = rows(tmp_path / "results")
    assert {row["status"] for row in found} == {"done"}
    assert {row["equivalent"] for row in found} == {"true"}
    logs = [path.read_text() for path in (tmp_path / "results/logs").rglob("*.log")]
    assert any(f"environment: {NODE_DISK}" in text and "horovod-" in text for text in logs)
