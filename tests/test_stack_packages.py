"""What a strategy needs of its stack's packages: the plan looks at a cluster's own wheels, preflight at the nodes."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from plans import CPU, ROOT
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.preflight.checks_node import packages
from relay.preflight.findings import Facts
from relay.spec import requirements, versions
from relay.spec.site import load_site, names
from small_wheels import only, write_wheel

LIGHTNING = "lightning|pytorch-lightning"
STRATEGIES = {name: requirements.read(path) for name, path in requirements.find().items()}


@pytest.mark.parametrize(
    ("found", "lacks"),
    [
        ({"deepspeed": "0.14.5+site"}, []),
        ({"deepspeed": "0.14.4"}, ["needs deepspeed >=0.14.5,<0.20, has deepspeed 0.14.4"]),
        ({"deepspeed": "0.20.0"}, ["needs deepspeed >=0.14.5,<0.20, has deepspeed 0.20.0"]),
        ({"deepspeed": None}, ["needs deepspeed >=0.14.5,<0.20, has none"]),
    ],
)
def test_a_version_is_asked_for_without_its_label(found: dict[str, str | None], lacks: list[str]) -> None:
    assert list(versions.lacking(["deepspeed>=0.14.5,<0.20"], found)) == lacks


def test_one_of_several_will_do() -> None:
    assert list(versions.lacking([LIGHTNING], {"pytorch-lightning": "2.5.1"})) == []
    assert list(versions.lacking([LIGHTNING], {})) == ["needs lightning or pytorch-lightning, has none"]


@pytest.mark.parametrize("name", [name for name in names(ROOT) if load_site(name, ROOT).environment.packages])
def test_a_ready_site_names_what_each_stack_needs(name: str) -> None:
    offered = load_site(name, ROOT).environment.packages
    for strategy, needs in STRATEGIES.items():
        there = dict.fromkeys(offered[needs.stack], "0")
        by_name = ["|".join(versions.names_in([each])) for each in needs.packages]
        assert list(versions.lacking(by_name, there)) == [], strategy


def of_a_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, **wheels: str) -> Plan:
    """The plan of a ZeRO and of Lightning's, where the cluster's own wheels have these versions."""
    offered = folder / "wheels"
    for name, version in {"torch": "2.9.1+site", **wheels}.items():
        write_wheel(offered, name.replace("_", "-"), version)
    for variable, value in only(offered).items():
        monkeypatch.setenv(variable, value)
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    stacks = {"torch": ["torch"], "deepspeed": ["torch", *(name.replace("_", "-") for name in wheels)]}
    site = {
        "name": "mine",
        "description": "a test",
        "verified": "here",
        "partitions": [{"name": None, "device": "cpu", "cpus_per_node": 8, "max_minutes": 60}],
        "environment": {"mode": "wheels", "wheels_from": "site", "packages": stacks, "python": sys.executable},
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(site))
    asked = [CPU, *({"strategy": name, "devices_per_node": 2} for name in ("zero1", "lightning_zero3"))]
    config = load({"repeats": 1, "comparisons": asked})
    return plan(config, site=load_site(str(folder / "mine.yaml"), ROOT), speeds=Path("none"), record=True)


@pytest.mark.slow
def test_another_deepspeed_of_the_clusters_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = of_a_cluster(tmp_path, monkeypatch, deepspeed="0.13.1+site", pytorch_lightning="2.5.1")
    told = {each.setting.strategy.name: "; ".join(each.reasons) for each in made.skipped}
    assert set(told) == {"zero1", "lightning_zero3"}
    assert told["zero1"].startswith(
        "zero1 needs deepspeed >=0.14.5,<0.20, has deepspeed 0.13.1 (results/locks/deepspeed-"
    )
    assert told["zero1"].endswith(
        f"name it under environment.packages.deepspeed of {tmp_path}/mine.yaml, if the cluster has it"
    )


def test_preflight_stops_where_the_environment_lacks_it() -> None:
    def found(**there: str | None) -> Any:
        rank = {"rank": 0, "node": "n1", "python": "/env/bin/python", "packages": there | {"numpy": "2.0"}}
        run = {"node_needs": ["package deepspeed>=0.14.5,<0.20", "node_disk"], "stack": "deepspeed-0123456789ab"}
        return packages(Facts({"run": run, "job": None, "ranks": [rank], "allreduce": [], "complete": True}))

    assert found(deepspeed="0.19.8").found == "numpy 2.0, deepspeed 0.19.8"
    stopped = found(deepspeed=None)
    assert stopped.severity == "stop"
    assert stopped.found == (
        "a run of this check needs deepspeed >=0.14.5,<0.20, has none (rank 0 on n1, /env/bin/python)"
    )
    assert "environment of stack deepspeed" in stopped.remedy


def test_both_packages_of_lightning_give_the_same_names() -> None:
    """Some clusters have `pytorch_lightning` alone. So only that module imports either."""
    file = requirements.BUILT_IN / "_lightning_library.py"
    (choice,) = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If)]
    given = [[ast.unparse(each).partition(" import ")[2] for each in branch] for branch in (choice.body, choice.orelse)]
    assert given[0] == given[1]
    others = [path for path in file.parent.glob("*.py") if path != file]
    assert [path.name for path in others if "from lightning" in path.read_text()] == []
