"""Spot checks of wrong runs: what begins after the gate's steps, or lies outside of what a gate trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain_runs import Bench
from own_tasks import spec
from relay.run_folder.places import Places
from relay.spec.tasks import TaskSpec
from relay.training.changed_code import edited_since
from spot_checked import states, verdict

pytest_plugins = ["chain_runs"]
pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "strategies"
SHORT = {"total_steps": 12, "evaluate_every_steps": 6}
TWO = {"launcher": "torchrun", "devices_per_node": 2}
DIGITS = spec("lenet-digits")


def of_folder(name: str) -> dict[str, Any]:
    """A strategy of `tests/strategies`."""
    return {"strategy": name, "strategy_file": str(FOLDER / f"{name}.py")}


def problems(bench: Bench, spec: TaskSpec = DIGITS, **values: Any) -> str:
    """What the spot check has against a run, all in one text; its states stay."""
    chain = bench.chain("run", spec, **SHORT | values).train(forked=True)
    (found,) = verdict(chain)
    assert found["status"] == "failed", found
    assert states(chain.work)
    return "\n".join(found["problems"])


def test_a_job_that_begins_without_the_optimizers_state(bench: Bench) -> None:
    chain = bench.chain("run", DIGITS, **SHORT, **of_folder("unseen_forgets_momentum"))
    for first, last in ((0, 6), (6, 12)):
        assert chain.forked(first, last).status == 0
    (found,) = verdict(chain)
    assert [problem for problem in found["problems"] if problem.startswith("hop, steps 6 to 7: update")]


def test_an_evaluation_of_averaged_parameters_which_begins_after_the_gate(bench: Bench) -> None:
    told = problems(bench, **of_folder("unseen_evaluation_averaged"), total_steps=30, evaluate_every_steps=30)
    assert "end, steps 29 to 30: test loss differs from one plain process's by " in told
    assert "update" not in told


def test_a_diverged_training_whose_losses_are_told_as_finite(bench: Bench) -> None:
    diverging = replace(DIGITS, learning_rate=1e12)
    told = problems(bench, diverging, **of_folder("unseen_infinite_skipped"))
    assert "one plain process's loss is not finite there, the run recorded finite ones" in told


def test_gradients_that_are_sent_as_fp16(bench: Bench) -> None:
    declared = {"strategy": "ddp", "options": {"compression": "fp16"}, **TWO}
    assert "update differ" in problems(bench, **declared)


def test_a_declared_compression_is_only_bounded(bench: Bench) -> None:
    declared = {"strategy": "ddp", "options": {"compression": "fp16"}, "lossy": {"compression": 2e-3}, **TWO}
    (found,) = verdict(bench.chain("run", DIGITS, **SHORT, **declared).train(forked=True))
    assert found["status"] == "passed", found


def test_code_that_was_edited_after_the_run_had_begun_is_told_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = bench.strategy("edited", "self.wrapper.require_backward_grad_sync = self.steps < 3", base="ddp")
    chain = bench.chain("run", DIGITS, **SHORT, **wrong, **TWO).train(forked=True)
    places = Places(chain.results, chain.run.id)
    assert edited_since(chain.run, places) == ""
    file = Path(chain.run.strategy.file)
    file.write_text(file.read_text() + "\nEDITED = True\n")
    (found,) = verdict(chain)
    told, *others = found["problems"]
    assert told.startswith("its strategy's code changed after the run had begun, which may be the reason; ")
    assert told.endswith(f"relay train-again {places.run_id}")
    assert "differ" in others[0]
    monkeypatch.setattr("relay.training.changed_code.training_source", lambda run: "today's")
    assert edited_since(chain.run, places).startswith("its strategy's code and the code that trains changed ")
