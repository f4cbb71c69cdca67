"""A cluster's own wheels: what its folder offers when a comparison is planned first is recorded, and holds then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plans import CPU, ROOT, planned
from relay.environments.locks import lock_of
from relay.planning import table
from relay.planning.plan import Plan
from relay.workflow import unready
from slurm_runs import site_in
from small_wheels import only, write_wheel

OFFERED = {"torch": ["torch", "psutil"], "lightning": ["torch", "pytorch-lightning"]}


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster's folder of wheels, with versions of its own. pip knows it by its configuration."""
    folder = tmp_path / "wheelhouse"
    for name, version in (("torch", "2.6.0+site"), ("psutil", "7.0+site"), ("filelock", "3.1+site")):
        write_wheel(folder, name, version, *(["filelock"] if name == "torch" else []))
    for name, version in (("2.5.1", "<2.6"), ("2.5.2", "")):
        write_wheel(folder, "pytorch-lightning", name, f"torch{version}")
    for variable, value in only(folder).items():
        monkeypatch.setenv(variable, value)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def planned_in(folder: Path) -> Plan:
    environment = {"mode": "wheels", "wheels_from": "site", "packages": OFFERED, "python": sys.executable}
    return planned(CPU, site=site_in(folder, environment=environment), may="look")


@pytest.mark.slow
def test_what_is_offered_is_recorded_and_shown(offered: Path, tmp_path: Path) -> None:
    found = planned_in(tmp_path)
    assert unready.unready(found) == []
    job = found.job(found.runs[0])
    assert job is not None
    assert job.environment["packages"] == ["filelock===3.1+site", "psutil===7.0+site", "torch===2.6.0+site"]
    lock = lock_of(ROOT, found.runs[0].stack)
    shown = " ".join(table.render(found, width=200).split("\n"))
    assert f"stack torch: torch 2.6.0+site, as recorded in {lock}" in shown


@pytest.mark.slow
def test_a_recorded_wheel_that_is_gone_is_told_before_anything_is_submitted(offered: Path, tmp_path: Path) -> None:
    planned_in(tmp_path)
    write_wheel(offered, "torch", "2.7.0+site", "filelock")
    (offered / "torch-2.6.0+site-py3-none-any.whl").unlink()
    (line,) = unready.unready(planned_in(tmp_path))
    assert "torch 2.6.0+site (torch-2.6.0+site-py3-none-any.whl) is no more in" in line
    assert "delete this lock to begin again" in line
