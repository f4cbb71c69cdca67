"""What a stack needs of a node: environment modules, and versions of torch, Python and packages."""

from pathlib import Path
from typing import Any

import pytest

from plans import CPU, ROOT, planned, strategy_folder
from refusals import refusal
from relay.environments import node
from relay.planning.plan import Plan
from relay.spec import strategy_files, versions
from relay.spec.arithmetic import Arithmetic
from relay.spec.site import load_site, names
from slurm_runs import site_in

LIGHTNING = {"strategy": "lightning_ddp", "devices_per_node": 2}
MODULES = {"lightning": ["cuda/12.2", "gcc"], "libtorch": ["cmake"]}


def modules_of(found: Plan, specification: Any) -> list[str]:
    return found.job(specification).environment["stack_modules"]


def test_jobs_of_that_stack_have_them_and_no_others(tmp_path: Path) -> None:
    site = site_in(tmp_path, modules=["python/3.11"], stack_modules=MODULES, environment={"mode": "modules"})
    found = planned(CPU, LIGHTNING, site=site, device="cpu")
    (plain,), (further,) = found.runs_of("cpu"), found.runs_of("lightning_ddp")
    assert modules_of(found, plain) == []
    for each in (further, found.gates[found.gate(further)], found.preflights[found.preflight(further)]):
        assert modules_of(found, each) == ["cuda/12.2", "gcc"]
    (program,) = found.libtorch.values()
    assert modules_of(found, program) == ["cmake"]


def test_a_process_finds_out_what_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"mode": "modules", "modules": ["python/3.11"], "stack_modules": ["cuda"], "overlay": None}
    monkeypatch.setenv("LOADEDMODULES", "python/3.11.5")  # as Lmod completes it
    assert "modules: 'cuda' is not loaded on node" in refusal(node.interpreter, asked, Path("/tmp"))


# What a strategy needs of torch, Python and its stack's packages: the planner skips, preflight stops


def test_a_version_is_asked_for_without_its_label_and_one_of_several_will_do() -> None:
    asked = "needs deepspeed >=0.14.5,<0.20, has"
    assert list(versions.lacking(["deepspeed>=0.14.5,<0.20"], {"deepspeed": "0.14.5+site"})) == []
    for found, has in (("0.14.4", "deepspeed 0.14.4"), ("0.20.0", "deepspeed 0.20.0"), (None, "none")):
        assert list(versions.lacking(["deepspeed>=0.14.5,<0.20"], {"deepspeed": found})) == [f"{asked} {has}"]
    either = "lightning|pytorch-lightning"
    assert list(versions.lacking([either], {"pytorch-lightning": "2.5.1"})) == []
    assert list(versions.lacking([either], {})) == ["needs lightning or pytorch-lightning, has none"]


@pytest.mark.parametrize("name", [name for name in names(ROOT) if load_site(name, ROOT).environment.packages])
def test_a_ready_site_names_what_each_stack_needs(name: str) -> None:
    offered = load_site(name, ROOT).environment.packages
    for strategy, path in strategy_files.find().items():
        needs = strategy_files.read(path)
        there = dict.fromkeys(offered[needs.stack], "0")
        by_name = ["|".join(versions.names_in([each])) for each in needs.packages]
        assert list(versions.lacking(by_name, there)) == [], strategy


def test_a_strategy_that_needs_a_newer_torch_is_skipped(tmp_path: Path) -> None:
    folder = strategy_folder(tmp_path / "own", "modern", "least_torch='2.9'")
    here = (Arithmetic("", torch) for torch in ("2.5.1", "2.13.0+cpu"))
    old, new = (planned({"strategy": "modern"}, strategy_folders=[folder], arithmetic=each) for each in here)
    (skipped,) = old.skipped
    assert skipped.reasons == ("modern needs torch 2.9 or newer, has 2.5.1",)
    assert not new.skipped
    (check,) = new.preflights.values()
    assert check.node_needs == ("torch>=2.9",)
