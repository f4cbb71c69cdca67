"""A cluster's own wheels: what its folder offers when a comparison is planned first is recorded, and holds then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from plans import CPU, ROOT
from relay.config.config import load
from relay.environments.locks import lock_of
from relay.planning import planner, table
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.spec.site import load_site
from small_wheels import only, write_wheel

SITE = {
    "name": "mine",
    "description": "a test",
    "verified": "here",
    "partitions": [{"name": None, "device": "cpu", "cpus_per_node": 8, "max_minutes": 60}],
}
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


def planned(tmp_path: Path, *strategies: str, record: bool = True, **keys: Any) -> Plan:
    environment = {"mode": "wheels", "wheels_from": "site", "packages": OFFERED, "python": sys.executable}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SITE | {"environment": environment}))
    comparisons = [CPU, *({"strategy": name, "devices_per_node": 2} for name in strategies)]
    config = load({"repeats": 1, "comparisons": comparisons, **keys})
    return plan(config, site=load_site(str(tmp_path / "mine.yaml"), ROOT), speeds=Path("none"), record=record)


def asked(found: Plan) -> dict[str, Any]:
    job = found.job(found.runs[0])
    assert job is not None
    return dict(job.environment)


@pytest.mark.slow
def test_what_is_offered_is_recorded_and_shown(offered: Path, tmp_path: Path) -> None:
    found = planned(tmp_path)
    assert planner.unready(found) == []
    assert asked(found)["packages"] == ["filelock===3.1+site", "psutil===7.0+site", "torch===2.6.0+site"]
    lock = lock_of(ROOT, found.runs[0].stack)
    shown = " ".join(table.render(found, width=200).split("\n"))
    assert f"stack torch: torch 2.6.0+site, as recorded in {lock}" in shown


@pytest.mark.slow
def test_a_recorded_wheel_that_is_gone_is_told_before_anything_is_submitted(offered: Path, tmp_path: Path) -> None:
    planned(tmp_path)
    write_wheel(offered, "torch", "2.7.0+site", "filelock")
    (offered / "torch-2.6.0+site-py3-none-any.whl").unlink()
    (line,) = planner.unready(planned(tmp_path))
    assert "torch 2.6.0+site (torch-2.6.0+site-py3-none-any.whl) is no more in" in line
    assert "delete this lock to begin again" in line
