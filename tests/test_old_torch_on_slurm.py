"""The demo on a cluster whose torch is 2.5.1 and comes from a module: real Slurm, real environment modules."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

import slurm_packages
import torch_versions
from mini_slurm import MiniSlurm
from relay.base.files import read_json
from slurm_runs import ROOT, site_file, slurm_snakemake

VERSION = "2.5.1"


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, str]:
    """The variables of a shell that finds the module `torch/2.5.1`, also where it is no login shell."""
    slurm_packages.require({"modulecmd": "environment-modules"})
    python = torch_versions.python_of(VERSION)
    (tmp_path / "modulefiles/torch").mkdir(parents=True)
    (tmp_path / f"modulefiles/torch/{VERSION}").write_text(f"#%Module1.0\nprepend-path PATH {python.parent}\n")
    return {"BASH_ENV": "/usr/share/modules/init/bash", "MODULEPATH": str(tmp_path / "modulefiles")}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_demo_is_proven_and_measured(cluster: MiniSlurm, modules: dict[str, str], tmp_path: Path) -> None:
    site = site_file(tmp_path, modules=[f"torch/{VERSION}"], environment={"mode": "modules", "torch_version": VERSION})
    config = yaml.safe_load((ROOT / "config/demo.yaml").read_text()) | {"device": "cpu"}
    status, printed = slurm_snakemake(cluster, tmp_path, config, site=site, timeout_seconds=3500, variables=modules)
    assert status == 0, printed
    with (tmp_path / "results/comparison.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["strategy"] != "single_gpu"]  # which is skipped
    assert {row["status"] for row in rows} == {"done"}
    assert {row["equivalent"] for row in rows} == {"true"}
    assert {row["strategy"] for row in rows} == {"cpu", "ddp"}
    summaries = [read_json(path) for path in (tmp_path / "results/runs").glob("*/summary.json")]
    assert len(summaries) == config["repeats"] * len(rows)
    assert {summary["versions"]["torch"].partition("+")[0] for summary in summaries} == {VERSION}
