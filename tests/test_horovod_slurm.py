"""Horovod in real Slurm jobs: its wheel built ahead, installed on the nodes' own disks, which no network leads to."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import debian_packages
import stacks
from mini_slurm import NODE_DISK, MiniSlurm
from relay.base.files import read_json
from relay.planning.config import load
from relay.planning.planner import plan
from relay.spec.site import load_site
from slurm_runs import ROOT, WHEELS, site_file, slurm_snakemake

SHORT = {"device": "cpu", "repeats": 1, "epochs": 0.3, "runtime_minutes": 20, "warmup_steps": 2, "gate": {"steps": 20}}
SHORT |= {"spot_checks": {"random_steps": 0, "hops": 0, "end": False}, "task": "lenet-digits"}
ACROSS = {"strategy": "horovod", "nodes": 2}


@pytest.fixture(autouse=True)
def _asked_for() -> None:
    stacks.require("horovod")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_trains_from_its_wheel_on_two_nodes(cluster: MiniSlurm, tmp_path: Path) -> None:
    debian_packages.require()
    site = site_file(tmp_path, environment=WHEELS, network_interface="eth0")
    config = SHORT | {"comparisons": [{**ACROSS, "launcher": "srun"}]}
    (run,) = plan(load(config), site=load_site(str(site), ROOT)).runs
    target = f"results/runs/{run.id}/summary.json"
    status, printed = slurm_snakemake(cluster, tmp_path, config, target, site=site)
    assert status == 0, printed
    assert len(read_json(tmp_path / target)["hosts"]) == 2
    from_wheel(tmp_path)


def from_wheel(folder: Path) -> None:
    """A job had Horovod's wheel in an environment on its node's own disk."""
    logs = [path.read_text() for path in (folder / "results/logs").rglob("*.log")]
    assert any(f"environment: {NODE_DISK}" in text and "horovod-" in text for text in logs)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "comparisons",
    [
        pytest.param([{**ACROSS, "launcher": "srun"}], marks=pytest.mark.long),
        pytest.param(
            [{"strategy": "horovod", "devices_per_node": 2, "launcher": ["torchrun", "horovodrun"]}],
            marks=pytest.mark.long,
        ),
        pytest.param(
            [
                {**ACROSS, "launcher": ["srun", "torchrun"], "devices_per_node": [1, 2]},
                {"strategy": "horovod", "devices_per_node": 2, "launcher": ["srun", "torchrun", "spawn", "horovodrun"]},
            ],
            marks=pytest.mark.long,
        ),
    ],
    ids=["two nodes", "one node", "all launchers"],
)
def test_it_trains_from_its_wheel_on_every_shape(
    cluster: MiniSlurm, tmp_path: Path, comparisons: list[dict[str, Any]]
) -> None:
    debian_packages.require()
    site = site_file(tmp_path, environment=WHEELS, network_interface="eth0")
    config = SHORT | {"comparisons": comparisons}
    status, printed = slurm_snakemake(cluster, tmp_path, config, site=site, timeout_seconds=1700)
    assert status == 0, printed
    with (tmp_path / "results/comparison.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["status"] for row in rows} == {"done"}
    assert {row["equivalent"] for row in rows} == {"true"}
    from_wheel(tmp_path)
