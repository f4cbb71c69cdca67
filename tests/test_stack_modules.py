"""Environment modules of a stack: loaded by its jobs alone, looked for by their processes, and by the build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plans import CPU, planned
from relay.base.errors import UserError
from relay.environments import node
from relay.planning.plan import Plan
from slurm_runs import site_in

LIGHTNING = {"strategy": "lightning_ddp", "devices_per_node": 2}
MODULES = {"lightning": ["cuda/12.2", "gcc"], "libtorch": ["cmake"]}


def environment(found: Plan, specification: Any) -> dict[str, Any]:
    job = found.job(specification)
    assert job is not None
    return dict(job.environment)


def test_jobs_of_that_stack_have_them_and_no_others(tmp_path: Path) -> None:
    site = site_in(tmp_path, modules=["python/3.11"], stack_modules=MODULES, environment={"mode": "modules"})
    found = planned(CPU, LIGHTNING, site=site, device="cpu")
    (plain,), (further,) = found.runs_of("cpu"), found.runs_of("lightning_ddp")
    assert environment(found, plain)["stack_modules"] == []
    assert environment(found, further)["stack_modules"] == ["cuda/12.2", "gcc"]
    assert environment(found, found.gates[found.gate(further)])["stack_modules"] == ["cuda/12.2", "gcc"]
    assert environment(found, found.preflights[found.preflight(further)])["stack_modules"] == ["cuda/12.2", "gcc"]
    (program,) = found.libtorch.values()
    assert environment(found, program)["stack_modules"] == ["cmake"]


def test_a_process_finds_out_what_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"mode": "modules", "modules": ["python/3.11"], "stack_modules": ["cuda"], "overlay": None}
    monkeypatch.setenv("LOADEDMODULES", "python/3.11")
    with pytest.raises(UserError, match="modules: 'cuda' is not loaded on node"):
        node.interpreter(asked, Path("/tmp"))
