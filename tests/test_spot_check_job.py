"""The job of a spot check: what it says where states are gone or damaged, what it removes, and what it remembers."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import spot_checked
from chain_runs import Bench, Chain
from relay.run_folder.spots import states_folder
from relay.spot_check import stretch
from spot_checked import kept, states, verdict

pytest_plugins = ["chain_runs"]

SHORT = {"total_steps": 6, "evaluate_every_steps": 6}


def trained(bench: Bench, count: int = 1) -> list[Chain]:
    """Finished repeats of one setting."""
    first = bench.chain("results", **SHORT).train(forked=True)
    others = [first.planned(f"run-{number}", seed=number) for number in range(2, count + 1)]
    return [first, *(other.train(forked=True) for other in others)]


def test_a_state_of_the_optimizer_that_the_checkpoint_lacks_is_infinitely_far() -> None:
    plain = {"momentum_buffer of first.weight": torch.ones(2)}
    assert stretch._optimizer({}, plain) == math.inf
    assert stretch._optimizer(plain | {"step of first.weight": torch.ones(1)}, plain) == 0


@pytest.mark.slow
def test_runs_of_other_settings_are_checked_along_and_found_by_their_own_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.chain("results", **SHORT).train(forked=True)
    other = first.planned("other", setting_id="another").train(forked=True)
    found = verdict(first, beside=[other])
    assert [each["run"] for each in found] == [first.run.id]
    assert states(other.work) == []
    monkeypatch.setattr(spot_checked.preloaded, "start", lambda *_: pytest.fail("a process was started"))
    assert [(each["run"], each["status"]) for each in verdict(other)] == [("other", "passed")]


@pytest.mark.slow
def test_a_further_repeat_is_checked_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = trained(bench, 2)
    before = verdict(first)
    assert (before[0]["status"], before[0]["generation"], states(first.work)) == ("passed", "first", [])
    checked: list[str] = []
    start = spot_checked.preloaded.start

    def noted(spec: Path, role: str, work: Path, arguments: Sequence[str], code: Path) -> int:
        checked.extend(arguments[arguments.index("--runs") + 1 :])
        return start(spec, role, work, arguments, code)

    monkeypatch.setattr(spot_checked.preloaded, "start", noted)
    found = verdict(first, second)
    assert checked == [second.run.id]
    assert found[0] == before[0]
    assert found[1]["status"] == "passed"


@pytest.mark.slow
def test_a_run_without_records_or_with_a_damaged_state_is_not_checked(bench: Bench) -> None:
    (chain,) = trained(bench)
    records = shutil.move(chain.work / "records", chain.work / "aside")
    (found,) = verdict(chain)
    assert found["status"] == "not checked"
    assert "is not recorded" in found["unchecked"][0]
    shutil.move(records, chain.work / "records")
    for step in kept(chain).states:
        with (states_folder(chain.work) / f"step-{step}" / "rank-0.pt").open("ab") as stream:
            stream.write(b"x")
    (found,) = verdict(chain)
    assert found["status"] == "not checked"
    assert "checksum" in found["unchecked"][0]
