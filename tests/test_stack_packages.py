"""What a strategy needs of its stack's packages: the plan looks at a cluster's own wheels, preflight at the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from plans import ROOT
from relay.preflight.checks_node import packages
from relay.preflight.findings import Facts
from relay.spec import requirements, versions
from relay.spec.site import load_site, names

LIGHTNING = "lightning|pytorch-lightning"


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
    for strategy, path in requirements.find().items():
        needs = requirements.read(path)
        there = dict.fromkeys(offered[needs.stack], "0")
        by_name = ["|".join(versions.names_in([each])) for each in needs.packages]
        assert list(versions.lacking(by_name, there)) == [], strategy


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
