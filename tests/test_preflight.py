"""Preflight's checks on planned preflights and what nodes may report (`preflight_facts/`), its page, and its job.

The traps that can be made here are made in `test_preflight_on_nodes.py`.
"""

import copy
import errno
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from planned_preflights import FACTS, recorded
from plans import plan
from preflight_runs import says
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.config.config import load
from relay.launch.gpus import Sharing
from relay.preflight import job
from relay.preflight.checks import check_all
from relay.preflight.findings import Finding
from relay.preflight.page import page, show
from relay.process import one_gpu
from relay.run_folder import alive

TRAPS = json.loads((FACTS / "traps.json").read_text())["traps"]


def change(value: Any, path: list[str], to: Any) -> None:
    """Set what lies at a path; `*` is every element of a list."""
    step, *rest = path
    steps = range(len(value)) if step == "*" else [int(step) if isinstance(value, list) else step]
    for at in steps:
        if rest:
            change(value[at], rest, to)
        else:
            value[at] = copy.deepcopy(to)


def findings(facts: dict[str, Any]) -> dict[str, Finding]:
    return {found.check: found for found in check_all(facts)}


def test_bandwidths_are_those_of_the_slowest_rank_and_a_sum_is_wrong_that_is_wrong_on_any(monkeypatch) -> None:
    """Of four, another one needs a second, and has not got the sum."""
    from relay.preflight import collective  # with torch

    others: Any = SimpleNamespace(backend="gloo", barrier=lambda: None, largest=lambda _: [1.0])
    monkeypatch.setattr(collective.dist, "all_reduce", lambda tensor, group: tensor.fill_(4))
    row, *_ = collective._measure(others, None, "all", 4)
    assert not row["right"]
    assert row["bus_gb_per_second"] == pytest.approx(row["bytes"] / 1e9 * 2 * 3 / 4)


def test_a_lock_that_is_seen_late_is_known_and_another_fault_than_missing_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relay.preflight import collective  # with torch

    held: list[Any] = []
    place = tmp_path / ".relay-lock-token"
    other: Any = SimpleNamespace(rank=1, gather=lambda own: [own and "token"], barrier=lambda: None)
    later = threading.Timer(0.3, lambda: held.append(collective.files.exclusive(place, 0)))
    later.start()
    assert collective.lock_fault(other, tmp_path) is None
    later.join()
    first: Any = SimpleNamespace(rank=0, gather=lambda own: [own], barrier=lambda: None)
    refusal = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(collective.files, "exclusive", refusal)
    assert collective.lock_fault(first, tmp_path) == "it cannot be locked: Permission denied"


# On planned preflights, with reports written by hand


def test_of_what_is_right_nothing_is_said() -> None:
    assert [found.line for found in check_all(recorded())] == []


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap["trap"])
def test_a_recorded_trap_is_found_with_its_remedy(trap: dict[str, Any]) -> None:
    facts = recorded(trap.get("plan"))
    for path, to in trap["change"].items():
        change(facts, path.split("."), to)
    assert says(findings(facts)[trap["check"]], trap["severity"], *trap["says"])


# The page


def test_a_planned_preflight_that_did_not_run_is_no_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "planned" / "facts.json", recorded() | {"findings": []})
    found = vars(Finding("driver", "stop", "it is too old", "no matter"))
    write_json(tmp_path / "interrupted" / "collected.json", recorded() | {"findings": [found]})  # it was killed
    assert show(tmp_path, ["planned", "later", "interrupted"]) == 1
    printed = capsys.readouterr().out
    ends = [line.split()[-2:] for line in printed.splitlines() if line.startswith(("later", "inter"))]
    assert ends == [["not", "run"]] * 2
    assert "too old" not in printed
    assert printed.splitlines()[-1].startswith("Verdict: not known: 2 of 3")
    for planned, place in (["later"], tmp_path / "later"), ([], tmp_path):
        with pytest.raises(UserError, match=f"^{place}: no preflight has run"):
            page(tmp_path, planned)


# What the job makes of what the processes left


def left(folder: Path, *errors: str, joined: bool = False) -> list[Finding]:
    facts = recorded()
    for rank in facts["ranks"]:
        rank["joined"] = joined
    for number, error in enumerate(errors):
        fault = {"error": error, "rank": number, "time": number, "mistake": False, "kind": ""}
        write_json(folder / f"fault-{alive.attempt()}-{number}.json", fault)
    return job._from_faults(folder, facts, 4)


def test_ranks_that_cannot_join_each_other_are_a_problem_and_lost_ones_none(tmp_path: Path) -> None:
    error = "DistNetworkError: The client socket has timed out after 3ms while trying to connect to (10.1.0.1, 20123)"
    (found,) = left(tmp_path, error)
    assert says(found, "stop", "could not join each other at 10.1.0.1:20123", "network_interface", "firewalls")
    assert left(tmp_path, error, joined=True) == []
    assert left(tmp_path) == []


# Several ranks on one GPU: the self-test alone lets them share it, by an NCCL that can, and says so


def test_ranks_of_nccl_share_and_the_rest_is_skipped_with_its_reason() -> None:
    asked = load({"comparisons": [{"strategy": "ddp", "devices_per_node": [2, 8]}]})
    made = plan(asked, gpus=1, sharing=Sharing(4))
    assert ({run.shape.devices_per_node for run in made.runs}, len(made.skipped)) == ({2}, 1)
    why = plan(asked, gpus=1, sharing=Sharing(why_not="fetch a wheel"))
    assert not why.runs
    assert why.skipped[0].reasons == ("devices_per_node is 2, 1 GPU can be used here; fetch a wheel",)


def test_a_preflight_stops_at_a_shared_gpu_unless_nccl_is_told_of_it() -> None:
    facts = recorded()
    for rank in facts["ranks"]:
        rank |= {"node": "g1", "device_index": 0, "cuda": {**rank["cuda"], "devices": rank["cuda"]["devices"][:1]}}
    alone = findings(facts)
    assert says(alone["one GPU for each rank"], "stop", "NCCL refuses that", "backend gloo")
    assert "visible GPUs" in alone
    for rank in facts["ranks"]:
        rank["environment"][one_gpu.SHARED] = "1"
    shared = findings(facts)
    assert says(shared["one GPU for each rank"], "note", f"which {one_gpu.SHARED} allows", "no speed")
    assert "visible GPUs" not in shared
