"""What the driver makes of jobs that fail on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_slurm import MiniSlurm
from plans import CPU, DDP, planned
from relay.driver.job_requests import JobRequests
from slurm_runs import site_in


def test_a_node_is_left_out_by_jobs_that_others_can_take(
    cluster: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two nodes, a job of both needs the broken one as well."""
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    monkeypatch.chdir(tmp_path)
    made = planned(DDP | {"nodes": [1, 2]}, CPU, device="cpu", site=site_in(tmp_path))
    one, both = (next(run for run in made.runs if run.shape.devices == 2 * nodes) for nodes in (1, 2))
    jobs = JobRequests(made)
    assert jobs.leave_out(one, "c1")
    assert not jobs.leave_out(both, "c1")
    assert "--exclude=c1" in jobs.resources(one)["slurm_extra"].split()
    assert not jobs.leave_out(one, "c2")
    assert "--exclude=c1" in jobs.resources(one)["slurm_extra"].split()
    assert not any("--exclude" in jobs.resources(run)["slurm_extra"] for run in made.runs if run.shape != one.shape)
