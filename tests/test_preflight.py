"""Preflight's checks on planned preflights and what nodes may report (`preflight_facts/`), its page, and its job.

The traps that can be made here are made in `test_preflight_on_nodes.py`.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planned_preflights import FACTS, recorded
from preflight_runs import says
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.preflight import job
from relay.preflight.checks import check_all, explain, prevent_joining
from relay.preflight.findings import Finding
from relay.preflight.page import page, show
from relay.run_folder import attempt_name

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


def finding(facts: dict[str, Any], check: str) -> Finding:
    return {found.check: found for found in check_all(facts)}[check]


def test_bandwidths_are_those_of_the_slowest_rank_and_a_sum_is_wrong_that_is_wrong_on_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of four, another one needs a second, and has not got the sum."""
    from relay.preflight import collective  # with torch

    others: Any = SimpleNamespace(backend="gloo", barrier=lambda: None, largest=lambda _: [1.0])
    monkeypatch.setattr(collective.dist, "all_reduce", lambda tensor, group: tensor.fill_(4))
    row, *_ = collective._measure(others, None, "all", 4)
    assert not row["right"]
    assert row["bus_gb_per_second"] == pytest.approx(row["bytes"] / 1e9 * 2 * 3 / 4)


# On planned preflights, with reports written by hand


def test_of_what_is_right_nothing_is_said() -> None:
    assert [found.line for found in check_all(recorded()) if not found.ok] == []


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap["trap"])
def test_a_recorded_trap_is_found_with_its_remedy(trap: dict[str, Any]) -> None:
    facts = recorded(trap.get("plan"))
    for path, to in trap["change"].items():
        change(facts, path.split("."), to)
    assert says(finding(facts, trap["check"]), trap["severity"], *trap["says"])


@pytest.mark.parametrize("known", ["nothing of torch", "nobody"])
def test_checks_bear_with_what_is_not_known_yet(known: str) -> None:
    """A rank that ended before torch was loaded, or before anything, is no error of the checks."""
    facts = recorded() | {"complete": False, "allreduce": [], "job": None}
    late = ("torch", "cuda", "torchvision", "bound_affinity", "memory_limit_mb", "joined", "kernel", "device_index")
    late += ("nccl", "seen", "clock_ahead_seconds")
    facts["ranks"] = [{k: v for k, v in rank.items() if k not in late} for rank in facts["ranks"]]
    if known == "nobody":
        facts["ranks"] = []
    assert [found.line for found in check_all(facts) if found.severity == "stop"] == []
    assert prevent_joining(facts) == []


@pytest.mark.parametrize(
    ("error", "check", "remedy"),
    [
        (
            "DistBackendError: NCCL error … Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "one GPU for each rank",
            "gloo",
        ),
        ("RuntimeError: CUDA error: invalid device ordinal", "visible GPUs", "--gpus-per-node, bound to no task"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040)", "driver", "older CUDA"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "GPU memory", "nvidia-smi"),
    ],
)
def test_a_known_error_is_explained(error: str, check: str, remedy: str) -> None:
    found = explain(error)
    assert found is not None
    assert (found.check, found.severity) == (check, "stop")
    assert remedy in found.remedy
    assert explain("ValueError: a lost peer, or anything") is None


# The page


def written(folder: Path, name: str, *findings: Finding, failed: bool = False) -> Path:
    facts = recorded() | {"findings": [vars(found) for found in findings]}
    write_json(folder / name / ("collected.json" if failed else "facts.json"), facts)
    if failed:
        write_json(folder / name / "problems.json", [found.line for found in findings])
    return folder / name


def test_the_page_names_what_failed_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = Finding("driver", False, "stop", "it is too old", "ask for a newer one")
    remark = Finding("libaio", False, "note", "not there", "none needed")
    written(tmp_path, "one", remark)
    written(tmp_path, "two", fault, remark, failed=True)
    write_json(tmp_path / "three" / "problems.json", ["it could not start"])
    assert show(tmp_path) == 1
    printed = capsys.readouterr().out
    assert "stop: driver: it is too old [two]" in printed
    assert printed.index("stop:") < printed.index("note:")
    assert printed.count("note: libaio: not there") == 1
    assert "it could not start" in printed
    assert printed.splitlines()[-1].startswith("Verdict: NO: 2 of 3")


def test_a_planned_preflight_that_did_not_run_is_no_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "planned")
    interrupted = written(tmp_path, "interrupted", Finding("driver", False, "stop", "it is too old", "no matter"))
    (interrupted / "facts.json").rename(interrupted / "collected.json")  # as one that was killed leaves it
    assert show(tmp_path, ["planned", "later", "interrupted"]) == 1
    printed = capsys.readouterr().out
    assert [line.split()[-2:] for line in printed.splitlines() if line.startswith(("later", "inter"))] == [
        ["not", "run"]
    ] * 2
    assert "too old" not in printed
    assert printed.splitlines()[-1].startswith("Verdict: not known: 2 of 3")
    with pytest.raises(UserError, match="no preflight has run"):
        page(tmp_path, ["later"])
    with pytest.raises(UserError, match="no preflight has run"):
        page(tmp_path, [])


# What the job makes of what the processes left


def left(folder: Path, *errors: str, joined: bool = False) -> list[Finding]:
    facts = recorded()
    for rank in facts["ranks"]:
        rank["joined"] = joined
    for number, error in enumerate(errors):
        fault = {"error": error, "rank": number, "time": number, "lost_peer": True, "mistake": False, "kind": ""}
        write_json(folder / f"fault-{attempt_name.name()}-{number}.json", fault)
    return job._from_faults(folder, facts, 4)


def test_ranks_that_cannot_join_each_other_are_a_problem_and_lost_ones_none(tmp_path: Path) -> None:
    error = (
        "DistNetworkError: The client socket has timed out after 300000ms while trying to connect to (10.1.0.1, 20123)"
    )
    (found,) = left(tmp_path, error)
    assert says(found, "stop", "could not join each other at 10.1.0.1:20123", "network_interface", "firewalls")
    assert left(tmp_path, error, joined=True) == []
    assert left(tmp_path) == []
