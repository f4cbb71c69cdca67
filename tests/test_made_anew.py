"""A checkpoint of another start, and a dataset that was made anew between two jobs, are never gone on with unseen."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from chain_runs import Bench, Chain
from checkpointed import Checkpoints, Training, filled
from relay.base.files import read_json, write_json
from relay.datasets import manifest
from relay.launch.launcher import started
from relay.planning.handed import freeze_code
from relay.process.ranks import Ranks
from relay.run_folder.places import Places
from relay.training.changed_code import edited_since, source_today
from spot_checked import verdict

pytest_plugins = ["chain_runs", "checkpointed"]

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
