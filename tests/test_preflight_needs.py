"""What a strategy requires of each node: from its file through the plan to the preflight's check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planned_preflights import planned, recorded
from preflight_runs import says
from relay.base.errors import UserError
from relay.planning.plan import Plan
from relay.preflight.checks import check_all
from relay.preflight.findings import Finding
from relay.spec import requirements
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


def test_mps_on_cpus_needs_nothing() -> None:
    assert preflight_of(planned(MPS, config={"device": "cpu"}), "mps").node_needs == ()


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


def test_a_dataloader_is_looked_at_although_a_resident_run_has_its_shape() -> None:
    workers = {"loader": "dataloader", "data_workers": [1, 3]}
    made = planned({"strategy": "ddp"}, workers)
    resident = {made.preflight(run) for run in made.runs if run.feeding.loader == "resident"}
    streamed = {made.preflight(run) for run in made.runs if run.feeding.loader == "dataloader"}
    assert len(resident) == len(streamed) == 1
    assert resident != streamed
    assert made.preflights[streamed.pop()].feeding.data_workers == 3
    assert {made.preflight_of[name] for name in (*made.gates, *made.references)} == resident

    fault = {"version": "0.28.0", "error": "operator torchvision::nms does not exist", "mended": False}
    facts = recorded()
    facts["ranks"][0]["torchvision"] = fault
    assert says(findings(facts)["torchvision"], "warn", "torchvision::nms", "a task that imports it fails")


def test_a_need_that_no_preflight_knows_is_refused(tmp_path: Path) -> None:
    like_ddp(tmp_path, '{"cuda": ("gpu_direct",)}')
    with pytest.raises(UserError, match=r"requirements\.node_needs.*gpu_direct"):
        requirements.read(tmp_path / "like_ddp.py")
