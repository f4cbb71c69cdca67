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
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module `torch/2.5.1`, which a job can load as on a cluster: its command is there without a login shell."""
    slurm_packages.require({"modulecmd": "environment-modules"})
    python = torch_versions.python_of(VERSION)
    (tmp_path / "modulefiles/torch").mkdir(parents=True)
    (tmp_path / f"modulefiles/torch/{VERSION}").write_text(f"#%Module1.0\nprepend-path PATH {python.parent}\n")
    monkeypatch.setenv("BASH_ENV", "/usr/share/modules/init/bash")
    monkeypatch.setenv("MODULEPATH", str(tmp_path / "modulefiles"))
    return f"torch/{VERSION}"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_demo_is_proven_and_measured(cluster: MiniSlurm, module: str, tmp_path: Path) -> None:
    site = site_file(tmp_path, modules=[module], environment={"mode": "modules", "torch_version": VERSION})
    config = yaml.safe_load((ROOT / "config/demo.yaml").read_text()) | {"device": "cpu"}
    status, printed = slurm_snakemake(cluster, tmp_path, config, site=site, timeout_seconds=3500)
    assert status == 0, printed
    with (tmp_path / "results/comparison.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["status"] for row in rows} == {"done"}
    assert {row["equivalent"] for row in rows} == {"true"}
    summaries = [read_json(path) for path in (tmp_path / "results/runs").glob("*/summary.json")]
    assert len(summaries) == len(rows) >= 6
    assert {summary["versions"]["torch"].partition("+")[0] for summary in summaries} == {VERSION}
