"""What a strategy requires of each node: from its file through the plan to the preflight's check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planned_preflights import planned, recorded
from preflight_runs import says
from relay.planning.plan import Plan
from relay.preflight.checks import check_all
from relay.preflight.findings import Finding
from relay.spec.run import Preflight

MPS = {"strategy": "mps", "devices_per_node": 1, "processes_per_device": 2}
# Like ddp in all but what it requires of the nodes.
LIKE_DDP = """
from relay.strategies.base import Requirements
from relay.strategies.ddp import DDP


class LikeDDP(DDP):
    requirements = Requirements(least_devices=2, divides=("samples",), node_needs={needs})
"""


def findings(facts: dict[str, Any]) -> dict[str, Finding]:
    return {found.check: found for found in check_all(facts)}


def preflight_of(made: Plan, strategy: str) -> Preflight:
    """The preflight that the strategy's runs wait for."""
    (name,) = {made.preflight(run) for run in made.runs_of(strategy)}
    return made.preflights[name]


def like_ddp(folder: Path, needs: str) -> dict[str, Any]:
    """The config's part that finds a strategy `like_ddp` with these needs."""
    (folder / "like_ddp.py").write_text(LIKE_DDP.format(needs=needs))
    return {"strategy_folders": [str(folder)]}


def test_mps_planned_for_gpus_is_looked_for_and_stops_where_it_is_not() -> None:
    facts = recorded({"comparison": MPS})
    assert facts["run"]["node_needs"] == ("mps",)
    assert findings(facts)["MPS"].ok
    for rank in facts["ranks"][2:]:
        rank["mps"]["program"] = None
    assert says(findings(facts)["MPS"], "stop", "g2 has no nvidia-cuda-mps-control", "leave this strategy out")
    for rank in facts["ranks"]:
        rank["mps"]["active"] = True  # a daemon that the site keeps
    assert findings(facts)["MPS"].ok


def test_a_node_without_a_disk_of_its_own_stops_who_needs_one(tmp_path: Path) -> None:
    config = like_ddp(tmp_path, '{"cuda": ("node_disk",)}')
    site = {"environment": {"mode": "current"}}
    for strategy, severity in (("like_ddp", "stop"), ("ddp", "note")):
        facts = recorded({"comparison": {"strategy": strategy}, "site": site, "config": config})
        for rank in facts["ranks"]:
            rank["node_disk"] |= {"declared": None, "error": "Permission denied"}
        assert says(findings(facts)["node's disk"], severity, "Permission denied")


def test_runs_of_one_shape_do_not_fail_for_the_needs_of_another(tmp_path: Path) -> None:
    """Nor do their gates, nor the reference that all of them share."""
    config = like_ddp(tmp_path, '{"cuda": ("libaio",)}')
    for order in (("like_ddp", "ddp"), ("ddp", "like_ddp")):
        made = planned(*({"strategy": name} for name in order), config=config)
        assert len(made.preflights) == 2
        assert preflight_of(made, "like_ddp").node_needs == ("libaio",)
        plain = preflight_of(made, "ddp")
        assert plain.node_needs == ()
        for run in made.runs:
            gate = made.gate(run)
            assert made.preflight_of[gate] == made.preflight(run)
            assert made.preflight_of[made.reference_of[gate]] == plain.id


def test_the_needs_of_a_strategy_leave_its_runs_identity_alone(tmp_path: Path) -> None:
    """A strategy that later says what it needs is not trained again for it."""
    ids = {
        needs: [run.id for run in planned({"strategy": "like_ddp"}, config=like_ddp(tmp_path, needs)).runs]
        for needs in ("{}", '{"cuda": ("libaio",)}')
    }
    assert len({tuple(found) for found in ids.values()}) == 1
