"""A strategy's file that is edited between two calls: which code a run takes, and what its user is told."""

from __future__ import annotations

import pytest

from chain_runs import Bench, Chain
from relay.base.files import read_json
from relay.launch.job import started
from relay.planning.specifications import freeze_code
from relay.run_folder.places import Places
from relay.training.changed_code import edited_since, source_today, warnings

pytest_plugins = ["chain_runs"]

FAILS = "if self.steps == {step}:\n            raise ArithmeticError('as planted')"
SLOW = "time.sleep(0.05)"  # a checkpoint is complete before the step that fails


def told(chain: Chain) -> list[str]:
    return warnings([chain.run], chain.results)


def mended(bench: Bench) -> None:
    bench.strategy("mine")


@pytest.mark.slow
def test_what_is_edited_after_the_plan_is_for_the_next_one(bench: Bench) -> None:
    """The run, and what proves it, waited meanwhile. The file is broken now."""
    chain = bench.chain("results", **bench.strategy("mine"), total_steps=6)
    before, codes = source_today(chain.run), []
    freeze_code(chain.results, {"runs": [chain.run]})
    bench.strategy("mine", FAILS.format(step=1))
    ended = chain.forked()
    assert ended.status == 0, ended.errors
    state = read_json(chain.declared / "step-6.json")
    assert state["strategy_source"] == before != source_today(chain.run)
    spec, output = chain.declared / "run.json", chain.results / "out" / "verdict.json"
    started(spec, "a.role", chain.results, output, [], start=lambda *words: codes.append(words[-1].name) or 0)
    assert codes == [state["code"]]
    assert edited_since(chain.run, Places(chain.results, chain.run.id)) == ""
    freeze_code(chain.results, {"runs": [chain.run]})
    assert "its strategy's code changed" in edited_since(chain.run, Places(chain.results, chain.run.id))


@pytest.mark.slow
def test_a_run_with_a_checkpoint_says_that_it_keeps_its_code_and_how_to_start_anew(bench: Bench) -> None:
    failing = bench.strategy("mine", f"{SLOW}\n        {FAILS.format(step=40)}")
    chain = bench.chain("results", **failing)
    assert chain.forked().status == 1
    saved = chain.checkpoints()[-1]
    mended(bench)
    (line,) = told(chain)
    assert line == (
        f"strategy mine: its code has changed. run run-1 goes on from step {saved} with the code that it began with. "
        "To train with today's code from the start: python scripts/train_again.py run-1"
    )
    ended = chain.forked()
    assert ended.status in (0, 1)  # it counts its steps anew, and fails again where enough are left
    assert f"`python scripts/train_again.py {chain.declared.name}` lets it start anew with today's" in ended.errors
    assert read_json(chain.work / "chain.json")["strategy_source"] != source_today(chain.run)
