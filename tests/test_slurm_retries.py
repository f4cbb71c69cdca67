"""What the driver makes of jobs that fail on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_slurm import MiniSlurm
from relay.planning.config import load
from relay.planning.planner import plan
from relay.spec.site import load_site
from slurm_runs import ROOT, site_file, slurm_snakemake

BROKEN = '''
"""Node c1 has a GPU that fails."""

import os

from relay.strategies.base import Requirements, Strategy


class Broken(Strategy):
    requirements = Requirements(processes="one")

    def build(self):
        self.build_whole()

    def train_step(self, batch):
        if os.environ["SLURMD_NODENAME"] == "c1":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return super().train_step(batch)
'''


@pytest.mark.long
@pytest.mark.timeout(900)
def test_hardware_that_fails_is_tried_again_on_another_node(cluster: MiniSlurm, tmp_path: Path) -> None:
    """The only whole run in which a node is left out."""
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "broken.py").write_text(BROKEN)
    config = {
        "repeats": 1,
        "epochs": 1,
        "gate": {"steps": 20},
        "device": "cpu",
        "task": "lenet-digits",
        "comparisons": [{"strategy": "broken"}],
    }
    config |= {"strategy_folders": [str(tmp_path / "strategies")]}
    before = {job["JobId"] for job in cluster.jobs()}  # of other tests
    status, printed = slurm_snakemake(
        cluster, tmp_path, config, "broken", "--until", "segment", site=site_file(tmp_path)
    )
    assert status == 0, printed
    jobs = [job for job in cluster.jobs() if "segment" in job.get("Comment", "") and job["JobId"] not in before]
    assert [(job["NodeList"], job["ExcNodeList"]) for job in jobs] == [("c1", "(null)"), ("c2", "c1")], printed
    told = "failed: RuntimeError: CUDA error: uncorrectable ECC error encountered (rank 0 on c1); node c1 is left out"
    assert f"{told}; goes on with attempt 2" in printed
    assert "FAILED" not in printed


def test_a_node_is_left_out_by_jobs_that_others_can_take(
    cluster: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two nodes, a job of both needs the broken one as well."""
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    monkeypatch.chdir(tmp_path)
    comparisons = [{"strategy": "ddp", "nodes": [1, 2], "devices_per_node": 2}, {"strategy": "cpu"}]
    made = plan(load({"device": "cpu", "comparisons": comparisons}), site=load_site(str(site_file(tmp_path)), ROOT))
    one, both = (next(run for run in made.runs if run.shape.devices == 2 * nodes) for nodes in (1, 2))
    assert made.leave_out(one, "c1")
    assert not made.leave_out(both, "c1")
    assert "--exclude=c1" in made.resources(one)["slurm_extra"].split()
    assert not made.leave_out(one, "c2")
    assert "--exclude=c1" in made.resources(one)["slurm_extra"].split()
    assert not any("--exclude" in made.resources(run)["slurm_extra"] for run in made.runs if run.shape != one.shape)
