"""Files of a run that are another's, made anew or damaged: one message, and no run begins anew or goes on unseen."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain_runs import Bench, Chain
from checkpointed import Checkpoints, Training, filled
from plans import planned
from refusals import refusal
from relay.base.files import read_json, write_json
from relay.chain import files as of_chains
from relay.chain import sealed
from relay.datasets import manifest
from relay.launch.launcher import started
from relay.planning import costs, handed
from relay.planning.handed import freeze_code
from relay.process.ranks import Ranks
from relay.run_folder import attempts, run_chain
from relay.run_folder.places import Places
from relay.run_folder.run_chain import RunChain
from relay.training import job
from relay.training.adoption import adopt
from relay.training.changed_code import edited_since, source_today
from spot_checked import verdict
from summaries import left_records

STEPS = {"total_steps": 8, "evaluate_every_steps": 4}


def test_a_checkpoint_of_an_older_start_is_passed_over(
    checkpoints: Checkpoints, training: Training, ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run has the same id. It may have trained with other code."""
    begun = {"generation": "first", "code": "c", "strategy_source": "s", "adopted_from": None, "attempts": []}
    work = checkpoints.directory
    write_json(work / "chain.json", begun)
    filled(Checkpoints(work, ranks), training, 8)
    write_json(work / "chain.json", begun | {"generation": "second"})
    second = Checkpoints(work, ranks)
    (work / "step-8").rename(work / "aside")
    filled(second, training, 6)
    (work / "aside").rename(work / "step-8")
    assert second.resume(training.strategy, 0, 100) == 6
    assert "step-8 holds a checkpoint of another start of the run: it was copied there" in capsys.readouterr().out


def with_data_of_its_own(bench: Bench, prepared: Path) -> tuple[Chain, Path]:
    """A run, and its dataset, which nobody shares."""
    chain = bench.chain("results", **STEPS)
    (chain.results / "datasets").unlink()
    own = chain.results / "datasets" / chain.run.dataset.directory_name
    shutil.copytree(prepared / own.name, own)
    return chain, own


def made_anew(dataset: Path) -> None:
    """Other content with a manifest of its own: here, inputs that are normalised otherwise."""
    statistics = dataset / "statistics.json"
    known = json.loads(statistics.read_text())
    statistics.write_text(json.dumps(known | {"mean": [each + 0.25 for each in known["mean"]]}))
    manifest.write(dataset, replace(manifest.read(dataset), files=manifest.describe(dataset)))


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_data(bench: Bench, prepared: Path) -> None:
    chain, data = with_data_of_its_own(bench, prepared)
    assert chain.forked(0, 4).status == 0
    made_anew(data)
    ended = chain.forked(4, 8)
    assert ended.status == 1
    assert "its dataset was made anew with other content since its last job" in ended.errors
    assert f"delete results/runs/{chain.run.id} to train it from the start" in ended.errors


@pytest.mark.slow
def test_a_spot_check_with_other_data_says_nothing_against_the_run(bench: Bench, prepared: Path) -> None:
    chain, data = with_data_of_its_own(bench, prepared)
    chain.train(forked=True)
    made_anew(data)
    (found,) = verdict(chain)
    assert found["status"] == "not checked"
    assert found["unchecked"][-1].startswith("its dataset was made anew with other content (then ")


# A strategy's file that is edited between two calls: which code a run takes, and what its user is told

FAILS = "if self.steps == {step}:\n            raise ArithmeticError('as planted')"


@pytest.mark.slow
def test_what_is_edited_after_the_plan_is_for_the_next_one(bench: Bench) -> None:
    """The run, and what proves it, waited meanwhile. The file is broken now."""
    chain = bench.chain("results", **bench.strategy("mine"), total_steps=6)
    before, codes = source_today(chain.run), []
    freeze_code(chain.results, [chain.run])
    bench.strategy("mine", FAILS.format(step=1))
    ended = chain.forked()
    assert ended.status == 0, ended.errors
    state = read_json(chain.declared / "step-6.json")
    assert state["strategy_source"] == before != source_today(chain.run)
    spec, output = chain.declared / "run.json", chain.results / "out" / "verdict.json"
    started(spec, "a.role", chain.results, output, [], start=lambda *words: codes.append(words[-1].name) or 0)
    assert codes == [state["code"]]
    assert edited_since(chain.run, Places(chain.results, chain.run.id)) == ""
    freeze_code(chain.results, [chain.run])
    assert "its strategy's code changed" in edited_since(chain.run, Places(chain.results, chain.run.id))


# A small file that is damaged is passed over, or told in one message. It stops no run, and no run begins anew.


def by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x").touch()


def by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


MEASURED = {"layer_seconds": {"embed": 0.2, "block": 0.1, "attend": 0.3}}
DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "null": lambda path: path.write_bytes(b"null"),
    "of other types": lambda path: path.write_text(json.dumps({key: [{}] for key in read_json(path)})),
    "nested too deep": lambda path: path.write_bytes(b"[" * 100_000),
    "a folder": by_folder,
    "a link to nowhere": by_link,
}


@pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_chain_says_nothing_and_is_written_anew(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    made = RunChain(generation="first", code="c", strategy_source="s")
    made.write(tmp_path)
    harm(tmp_path / run_chain.CHAIN)
    assert run_chain.read(tmp_path) is None
    made.write(tmp_path)
    run_chain.note_measured(tmp_path, MEASURED)
    assert [*run_chain.measured(tmp_path)["layer_seconds"]] == ["embed", "block", "attend"]  # a pipeline is cut by it


# The chain


@pytest.fixture
def begun(bench: Bench, monkeypatch: pytest.MonkeyPatch, ranks: Ranks, prepared: Path) -> Chain:
    """A run with a checkpoint of step 4, and records up to it; what would train it next is only noted."""
    made = bench.chain("results", **bench.strategy("edited"))

    def launch(spec: Path, role: str, work: Path, arguments: list[str], code: Path) -> int:
        run_chain.note_measured(work, MEASURED)
        filled(Checkpoints(work, ranks), Training(ranks, prepared), 4)
        number = int(arguments[arguments.index("--attempt") + 1])
        left_records(work, number, {"time": 1.0, "start": 0, "ranks": []})
        return -9

    monkeypatch.setattr(job, "launch", launch)
    assert attempt(made) == 75
    return made


def attempt(made: Chain, number: int = 1) -> int:
    return job.run_segment(Places(made.results, made.run.id), 0, 60, number)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["missing", "cut", "of other types"])  # the others are read by the same function
def test_a_lost_chain_is_known_again_from_the_checkpoints(begun: Chain, capsys, harm) -> None:
    """It goes on, with the code that it began with, under a number of its own; nothing is removed."""
    path = begun.work / run_chain.CHAIN
    known = read_json(path)
    DAMAGES[harm](path)
    assert attempt(begun, 2) == 75
    assert "what it said is taken from the checkpoint of step 4" in capsys.readouterr().err
    found = read_json(path)
    assert (found["generation"], found["code"]) == (known["generation"], known["code"])
    assert found["measured"] == MEASURED
    assert [entry["number"] for entry in found["attempts"]] == [1, 2]
    assert attempts.numbers(begun.work) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["the manifests too", "the folder"])
def test_a_run_that_has_begun_never_starts_anew_by_itself(begun: Chain, gone: str) -> None:
    """Without what it could go on from it is one message, until somebody says so."""
    if gone == "the folder":
        shutil.rmtree(begun.work)
    else:
        (begun.work / run_chain.CHAIN).unlink()
        (begun.work / "step-4" / sealed.MANIFEST).unlink()
    told = f"the checkpoints in {begun.work} do not belong to this chain, or are gone; .*delete {begun.declared}"
    for number in (2, 1):
        assert re.search(told, refusal(attempt, begun, number))
    begun.start_anew("second")
    assert attempt(begun) == 75
    assert read_json(begun.work / run_chain.CHAIN)["generation"] == "second"


@pytest.mark.slow
def test_the_declared_start_is_kept_twice(begun: Chain) -> None:
    DAMAGES["cut"](begun.declared / run_chain.START)
    assert attempt(begun, 2) == 75
    assert read_json(begun.work / run_chain.CHAIN)["generation"] == "first"
    (begun.declared / run_chain.BEGUN).unlink()
    assert "start.json is missing or damaged; delete it, and start the run through" in refusal(attempt, begun, 3)


@pytest.mark.slow
def test_a_run_whose_chain_is_lost_adopts_no_other_checkpoint(begun: Chain) -> None:
    """That would remove its own."""
    begun.planned("run-2")
    (begun.work / run_chain.CHAIN).unlink()
    assert "it has begun" in refusal(adopt, begun.results, "run-2", "run-1")
    assert begun.checkpoints() == [4]


# Checkpoints


@pytest.mark.parametrize("write", [write_json, of_chains.write_json], ids=["relay", "relay.chain"])
def test_what_others_have_put_in_the_way_is_not_written_to(tmp_path: Path, write: Callable[[Path, Any], None]) -> None:
    (tmp_path / f".x.json.{os.getpid()}").symlink_to(tmp_path / "mine")
    (tmp_path / "mine").write_text("kept")
    write(tmp_path / "x.json", {"a": 1})
    assert ((tmp_path / "mine").read_text(), read_json(tmp_path / "x.json")) == ("kept", {"a": 1})
    assert len([*tmp_path.iterdir()]) == 3


def test_a_plan_and_a_summary_of_another_form_keep_no_call_from_planning(tmp_path: Path) -> None:
    plan = planned({"strategy": "cpu"}, results=tmp_path)
    places = Places(tmp_path, plan.runs[0].id)
    places.run.mkdir(parents=True)
    for damaged in ("3", "[]", '{"runs": 3, "allocated_seconds": "x"}', '{"runs": [{}]}'):
        for path in (places.run / "summary.json", tmp_path / "plan.json"):
            path.write_text(damaged)
        assert (handed._edited(plan), costs._trained_seconds(places)) == ("", 0.0)
