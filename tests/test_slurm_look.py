"""A task that only the cluster's own software can import: a job looks at it, and then all is planned and trained."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import slurm_packages
from mini_slurm import MiniSlurm
from results_tree import rows
from slurm_runs import site_file, slurm_snakemake
from test_task_packages import CONFIG, OWN


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, str]:
    """Real environment modules, one of them with a Python that has the task's package; the variables of a shell."""
    slurm_packages.require({"modulecmd": "environment-modules"})
    theirs = tmp_path / "theirs"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(theirs)], check=True)
    (packages,) = theirs.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(sysconfig.get_path("purelib"))
    (packages / "tiny_points.py").write_text("COUNT = 64\n")
    (tmp_path / "modulefiles/torch").mkdir(parents=True)
    (tmp_path / "modulefiles/torch/2.0").write_text(f"#%Module1.0\nprepend-path PATH {theirs}/bin\n")
    return {"BASH_ENV": "/usr/share/modules/init/bash", "MODULEPATH": str(tmp_path / "modulefiles")}


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.timeout(900)
def test_a_job_looks_where_the_login_node_cannot(cluster: MiniSlurm, modules: dict[str, str], tmp_path: Path) -> None:
    """Only this plans and trains what a job has looked at."""
    (tmp_path / "my_task.py").write_text(OWN)
    site = site_file(tmp_path, modules=["torch/2.0"], environment={"mode": "modules"})
    config = CONFIG | {"repeats": 1, "runtime_minutes": 10, "comparisons": [{"strategy": "cpu"}]}
    status, printed = slurm_snakemake(cluster, tmp_path, config, "-n", site=site, variables=modules)
    assert status == 0, printed
    assert "its model and its data are not known yet" in printed
    assert "No module named 'tiny_points'" in printed
    assert not list((tmp_path / "results").glob("cards/*.json"))

    status, printed = slurm_snakemake(cluster, tmp_path, config, site=site, variables=modules)
    assert status == 0, printed
    (card,) = (tmp_path / "results").glob("cards/*.json")
    assert '"parameters": 20' in card.read_text()
    (row,) = rows(tmp_path / "results")
    assert (row["status"], row["equivalent"]) == ("done", "true"), row["reason"]
