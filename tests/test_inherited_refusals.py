"""A run that goes on from another one's checkpoint inherits what is found against it, through several adoptions."""

import shutil
from dataclasses import asdict
from typing import Any

import pytest

from chain_runs import Bench, Chain
from relay import commands
from relay.base.files import read_json, write_json
from relay.run_folder import proof_notes
from relay.spec.run import OwnBatch
from relay.training.adoption import adopt
from relay.training.summary import summarise
from results_tree import Tree, status

EQUIVALENT: dict[str, Any] = {"equivalent": True, "problems": [], "parts": [], "notes": []}
REFUSED = {**EQUIVALENT, "equivalent": False, "problems": ["algorithm: losses differ"]}


def verdict(chain: Chain, **changes: Any) -> None:
    """The verdict of the gate of this run, made with what the run was trained with, but for the changes."""
    known = read_json(chain.work / "chain.json")
    gate = f"gate-{chain.run.id}"
    proof_notes.note(chain.declared, gate)
    own = [{**asdict(OwnBatch.of(chain.run)), **EQUIVALENT}]
    found = EQUIVALENT | {"strategy_source": known["strategy_source"], "own_batches": own} | changes
    write_json(chain.results / "equivalence" / "gates" / gate / "verdict.json", found)


def spot_check(chain: Chain, status: str) -> None:
    place = chain.results / "equivalence" / "spot_checks" / chain.run.setting_id / "verdict.json"
    write_json(place, {"runs": [{"run": chain.run.id, "status": status, "problems": ["step 3: another loss"]}]})


def inherited(chain: Chain) -> list[str]:
    return proof_notes.inherited(chain.results, read_json(chain.work / "chain.json")["adopted_from"])


@pytest.fixture
def relayed(bench: Bench) -> tuple[Chain, Chain, Chain]:
    """Three runs: the second goes on from the first one's step 3, the third from the second one's step 6."""
    first = bench.chain("results", total_steps=9, evaluate_every_steps=9)
    assert first.forked(0, 3).status == 0
    second, third = first.planned("second"), first.planned("third")
    verdict(first)
    adopt(first.results, first.run.id, second.run.id)
    assert second.forked(0, 6).status == 0
    verdict(second)
    adopt(first.results, second.run.id, third.run.id)
    assert third.forked(0, 9).status == 0
    return first, second, third


AGAINST = "it went on from step 3 of run run-1, which is not proven: "


@pytest.mark.slow
def test_refusals_are_inherited(relayed: tuple[Chain, Chain, Chain], capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = relayed
    assert inherited(third) == inherited(second) == inherited(third) == []
    assert proof_notes.inherited(first.results, None) == []

    verdict(second, **REFUSED)
    assert summarise(third.run, third.work).adopted_from["run"] == "second"
    fourth = first.planned("fourth")
    capsys.readouterr()
    assert status("adopt", "--source", "second", "--run", "fourth", "--results", str(first.results)) == 0
    told = capsys.readouterr()
    assert told.out == "run fourth goes on from step 6 of run second\n"
    assert told.err.startswith("warning: run fourth went on from step 6 of run second, which is not proven: its gate: ")
    assert told.err.endswith(" losses differ. The report strikes out runs that continue it\n")
    assert read_json(fourth.work / "adopted.json")["gate"] == "gate-second"
    verdict(second)

    verdict(first, **REFUSED)
    assert inherited(third) == inherited(second) == [AGAINST + "its gate: algorithm: losses differ"]
    (own,) = read_json(first.results / "equivalence/gates/gate-run-1/verdict.json")["own_batches"]
    verdict(first, equivalent=False, own_batches=[own, {**own, **REFUSED, "global_batch_size": 7}])
    assert inherited(third) == []
    verdict(first, equivalent=False, own_batches=[own | REFUSED])
    assert inherited(third) == [f"{AGAINST}its gate: batch {own['global_batch_size']}: algorithm: losses differ"]
    verdict(first, strategy_source="another")
    assert inherited(third) == [AGAINST + "the code gated is not the code that ran"]
    verdict(first, versions={"torch": "1.0"})
    assert inherited(third)[0].startswith(AGAINST + "proven with another torch: 1.0, not ")
    verdict(first, dataset="0" * 12)
    assert inherited(third)[0].startswith(AGAINST + "proven with another dataset: 000000000000, not ")
    verdict(first)
    spot_check(first, "passed")
    assert inherited(third) == []
    spot_check(first, "failed")
    assert inherited(third) == [AGAINST + "its spot check: step 3: another loss"]

    verdict(second, **REFUSED)
    steps = [line.partition(" of ")[0] for line in inherited(third)]
    assert steps == ["it went on from step 6", "it went on from step 3"]
    # The folder of the run before is not needed later.
    verdict(second)
    (first.results / "equivalence" / "spot_checks" / first.run.setting_id / "verdict.json").unlink()
    verdict(first, **REFUSED)
    for folder in (first.declared, first.work):
        shutil.rmtree(folder)
    assert inherited(third) == [AGAINST + "its gate: algorithm: losses differ"]
    (first.results / "equivalence" / "gates" / "gate-run-1" / "verdict.json").unlink()
    assert inherited(third) == [AGAINST + "its gate has given no verdict"]


def test_a_row_that_inherits_a_refusal_is_struck_out(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0])
    tree.write("equivalence/gates/gate-before/verdict.json", REFUSED)
    before = {"run": "before", "step": 3, "gate": "gate-before", "adopted_from": None}
    tree.setting("ddp", [9000.0, 9100.0], devices_per_node=2, summary={"adopted_from": before})
    row = tree.row("ddp")
    assert (row["equivalent"], row["standing"]) == (False, None)
    assert row["reason"].startswith("all 2 repeats: it went on from step 3 of run before, which is not proven: its ")
    assert tree.row("cpu")["standing"] == "fastest"


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_dry_run_hands_nothing_over(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("relay.training.adoption.adopt", lambda *_, dry: asked.append(dry) or 3)
    monkeypatch.setattr("relay.training.adoption.against", lambda *_: [])
    assert commands.start(["adopt", "--source", "one", "--run", "other", *words]) == 0
    assert asked == [bool(words)]
