"""What the gate sees between steps, of modules and of who does the work: each planted fault is caught by its part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gate_parts import Asked, verdicts
from gate_runs import Gates
from relay.equivalence.division import Shares, undivided
from relay.strategies.base import Replica

FP16 = {"precision": "fp16"}
COSINE = {"learning_rate_schedule": "cosine", "learning_rate_warmup_epochs": 2}
DROPOUT, NORMS = "utsa-mnist", "resnet18-cifar10"


@dataclass(frozen=True)
class Planted:
    """A fault of `strategies/wrong.py`: the parts that fail, none but them, and how the problems beside them begin."""

    fault: str
    fails: frozenset[str] = frozenset()
    says: tuple[str, ...] = ()
    task: str = "lenet-digits"
    axes: dict[str, Any] = field(default_factory=dict)
    where: str = ""

    def __str__(self) -> str:
        return self.fault

    @property
    def asked(self) -> Asked:
        """What is judged."""
        if self.fault == "wrong_norm_averaged":
            return Asked(self.fault, self.task)
        return Asked("wrong", self.task, {"fault": self.fault}, self.axes)


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
        "ResumeWithoutMomentum",
        fails=parts("resumed.losses", "resumed.outputs", "resumed.state", "own.resumed"),
        where="first differs ",
    ),
    Planted("MomentumRoundedWhenLoaded", fails=parts("own.state")),
    Planted("SavingDisturbs", fails=parts("trained.losses", "trained.parameters", "own.resumed")),
    Planted(
        "CheckpointOfItsOwn",
        says=("between steps: one plain process cannot load the checkpoint: FileNotFoundError",),
    ),
    Planted("ScaleLost", axes=FP16, says=("between steps: the loss's scale is another one after",)),
    # Evaluation
    Planted(
        "EvaluationRounds",
        fails=EVERY_NUMBER - parts("resumed.losses"),
        says=("evaluation: it changes the model: conv1.weight",),
    ),
    # Low precision where nobody looks
    Planted("EvaluationLowered", fails=parts("own.outputs")),
    Planted(
        "LoweredMomentum",
        says=("low precision: in fp32: optimizer state: momentum_buffer of conv1.weight is bfloat16, not float32",),
    ),
    # Dropout, of which the gate replaces the masks: those that a strategy draws are looked at
    Planted("DropoutLeftOut", task=DROPOUT, fails=EVERYTHING, says=(LESS,)),
    Planted("DropoutRepeats", task=DROPOUT, says=("dropout: the same random numbers are drawn in steps 0 and 1",)),
    Planted("DropoutAlike", task=DROPOUT, says=("dropout: the same random numbers are drawn on replicas 0 and 1",)),
    Planted(
        "PredictsInTrainingMode",
        task=DROPOUT,
        fails=parts("trained.outputs", "resumed.outputs"),
        says=("dropout: while it predicts, units are dropped ",),
    ),
    # BatchNorm
    Planted("wrong_norm_averaged", task=NORMS, fails=STATISTICS),
    # Who does the work, and at which learning rate
    Planted("NoSchedule", axes=COSINE, fails=EVERYTHING | parts("own.outputs")),
    Planted("WorkForward", says=("division of work: step 0: rank 0 computes 70.3% (forward 100.0%) of what",)),
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


def test_a_process_that_keeps_the_optimizer_for_the_others_is_no_idle_one() -> None:
    """As a parameter server's; whoever keeps no more of it than the others has to compute."""
    replicas = [Replica(0, 2, reports=False), Replica(0, 2), Replica(1, 2)]
    steps = [[Shares(0, 0), Shares(0.5, 0.5), Shares(0.5, 0.5)]]
    told = "rank 0 computes no samples: it keeps the optimizer's state for the others"
    assert undivided(replicas, steps, [1, 0, 0]) == ([], [told])
    (problem,), _ = undivided(replicas, steps, [1, 1, 1])
    assert problem.endswith("rank 0 computes nothing; ranks 0, 1 should share a replica's work")
