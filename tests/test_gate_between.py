"""What the gate sees between steps, of modules and of who does the work: each planted fault is caught by its part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gate_parts import Asked, verdicts
from gate_runs import Gates

FP16 = {"precision": "fp16"}
DROPOUT, NORMS = "utsa-mnist", "resnet18-cifar10"


@dataclass(frozen=True)
class Planted:
    """A wrong strategy: the parts that fail, none but them; how the problems beside these parts begin; and where."""

    strategy: str
    fails: frozenset[str] = frozenset()
    says: tuple[str, ...] = ()
    task: str = "lenet-digits"
    axes: dict[str, Any] = field(default_factory=dict)
    where: str = ""

    def __str__(self) -> str:
        return self.strategy.removeprefix("wrong_")

    @property
    def asked(self) -> Asked:
        """What is judged."""
        return Asked(self.strategy, self.task, axes=self.axes)


def parts(*names: str) -> frozenset[str]:
    """The names of parts: 'trained.losses' for 'as trained: losses', and so on."""
    trials = {"trained": "as trained", "resumed": "between steps", "own": "own precision"}
    return frozenset(f"{trials[name.split('.')[0]]}: {name.split('.')[1]}" for name in names)


EVERY_NUMBER = parts("trained.parameters", "trained.outputs", "resumed.parameters", "resumed.outputs", "resumed.losses")
EVERY_NUMBER |= parts("resumed.state")
STATISTICS = (EVERY_NUMBER | parts("trained.statistics")) - parts("resumed.losses")

EVERYTHING = EVERY_NUMBER | parts("trained.losses")
LESS = "dropout: while it trains, units are dropped "

WRONG = [
    # Checkpoints
    Planted(
        "wrong_resume_without_momentum",
        fails=parts("resumed.losses", "resumed.outputs", "resumed.state", "own.resumed"),
        where="first differs after a checkpoint was loaded, in ",
    ),
    Planted("wrong_momentum_rounded_when_loaded", fails=parts("own.state")),
    Planted("wrong_saving_disturbs", fails=parts("trained.losses", "trained.parameters", "own.resumed")),
    Planted(
        "wrong_checkpoint_of_its_own",
        says=("between steps: one plain process cannot load the checkpoint: FileNotFoundError",),
    ),
    Planted("wrong_scale_lost", axes=FP16, says=("between steps: the loss's scale is another one after",)),
    # Evaluation
    Planted(
        "wrong_evaluation_rounds",
        fails=EVERY_NUMBER - parts("resumed.losses"),
        says=("evaluation: it changes the model: conv1.weight",),
    ),
    # Low precision where nobody looks
    Planted("wrong_evaluation_lowered", fails=parts("own.outputs")),
    Planted(
        "wrong_lowered_momentum",
        says=("low precision: in fp32: optimizer state: momentum_buffer of conv1.weight is bfloat16, not float32",),
    ),
    # Dropout, of which the gate replaces the masks: those that a strategy draws are looked at
    Planted("wrong_dropout_left_out", task=DROPOUT, fails=EVERYTHING, says=(LESS,)),
    Planted(
        "wrong_dropout_repeats", task=DROPOUT, says=("dropout: the same random numbers are drawn in steps 0 and 1",)
    ),
    Planted(
        "wrong_dropout_alike", task=DROPOUT, says=("dropout: the same random numbers are drawn on replicas 0 and 1",)
    ),
    Planted(
        "wrong_predicts_in_training_mode",
        task=DROPOUT,
        fails=parts("trained.outputs", "resumed.outputs"),
        says=("dropout: while it predicts, units are dropped ",),
    ),
    # BatchNorm
    Planted("wrong_norm_averaged", task=NORMS, fails=STATISTICS),
    # Who does the work
    Planted("wrong_work_forward", says=("division of work: step 0: rank 0 computes 70.3% (forward 100.0%) of what",)),
]
RIGHT = [
    Asked("ddp", options={"compression": "powersgd"}),
    Asked("pipeline", axes=FP16),
    Asked("right_zero_redundancy"),
    Asked("right_own_loop"),
    Asked("ddp", NORMS, options={"accumulation": 2}),
]


@pytest.fixture(scope="module")
def found(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Asked], dict[str, Any]]:
    """The verdict of each strategy asked for."""
    return verdicts(gates, tmp_path_factory.mktemp("judged"), [*(planted.asked for planted in WRONG), *RIGHT])


@pytest.mark.slow
@pytest.mark.parametrize("planted", WRONG, ids=str)
def test_a_fault_is_caught_by_its_part(found: Callable[[Asked], dict[str, Any]], planted: Planted) -> None:
    verdict = found(planted.asked)
    failed = {part["name"] for part in verdict["parts"] if not part["passed"]}
    assert failed == planted.fails
    beside = [problem for problem in verdict["problems"] if not any(problem.startswith(f"{name}: ") for name in failed)]
    assert len(beside) == len(planted.says), beside
    for text in planted.says:
        assert any(problem.startswith(text) for problem in beside), beside
    assert (verdict["where"] or "").startswith(planted.where)


@pytest.mark.slow
@pytest.mark.parametrize("asked", RIGHT, ids=str)
def test_a_right_strategy_raises_no_alarm(found: Callable[[Asked], dict[str, Any]], asked: Asked) -> None:
    verdict = found(asked)
    assert verdict["problems"] == []
    exact = [part for part in verdict["parts"] if part["limit"] == 1e-9]
    assert len(exact) >= 7
    assert all(part["figure"] <= 1e-9 / 1000 for part in exact), exact
    if asked.axes.get("precision") is None and not verdict.get("lossy"):
        (outputs,) = (p for p in verdict["parts"] if p["name"] == "own precision: outputs")
        assert outputs["figure"] <= outputs["limit"] / 10
    computed = verdict["computed_share"]
    assert len(computed) == 2
    if asked.strategy in ("ddp", "fsdp"):
        assert computed == [0.5, 0.5]


@pytest.mark.slow
def test_a_process_that_keeps_the_optimizer_for_the_others_is_no_idle_one(
    gates: Gates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asked = Asked("right_server_rank", axes={"global_batch_size": 18})
    verdict = verdicts(gates, tmp_path_factory.mktemp("three"), [asked], processes=3)(asked)
    assert verdict["problems"] == []
    assert verdict["computed_share"] == [0.0, 0.5, 0.5]
    assert "rank 0 computes no samples: it keeps the optimizer's state for the others" in verdict["notes"]
