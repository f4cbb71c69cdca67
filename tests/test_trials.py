"""The task as the gate's trials train it: schedules, smooth twins, and limits that rounding loosens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gate_runs import Gates, planned
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import Trial, at_own_batch, trials
from relay.spec.run import Gate, OwnBatch, Training, changed

CPU = torch.device("cpu")


def trial(run: Training, name: str) -> Trial:
    """The trial of that name."""
    return {t.name: t for t in trials(run)}[name]


def in_trial(data: TrialData, name: str) -> TrialTask:
    """The task in that trial."""
    return data.task(trial(data.run, name))


def test_a_schedule_by_epochs_moves_within_the_gate(gates: Gates) -> None:
    """Otherwise a strategy that ignores the learning rate it is told would pass, and train wrong from epoch 2 on."""
    run = changed(planned("cpu", task="princeton-mnist")[0], steps_per_epoch=900)
    steps, folder = run.length.total_steps, gates.dataset(run)
    assert run.length.steps_per_epoch > steps
    for schedule, rates in ((run.task.schedule, 4), ({"kind": "step", "every_epochs": 30, "gamma": 0.1}, 2)):
        slow = replace(run, task=replace(run.task, schedule=schedule))
        algorithm = in_trial(TrialData(slow, folder, CPU), "algorithm")
        assert algorithm.learning_rate(0) == run.task.learning_rate
        assert len({algorithm.learning_rate(step) for step in range(steps)}) >= rates


def test_an_own_batch_is_trained_at_its_own_learning_rate(gates: Gates) -> None:
    """A gate trains at its small batch first, at another rate where the rate grows with the batch."""
    run = planned("cpu")[0]
    assert isinstance(run, Gate)
    data, own = TrialData(run, gates.dataset(run), CPU), OwnBatch(global_batch_size=64, learning_rate=0.04)
    assert in_trial(data, "algorithm").learning_rate(0) == run.task.learning_rate != own.learning_rate
    larger = in_trial(data.of(at_own_batch(run, own)), "algorithm")
    assert (larger.learning_rate(0), larger.own.learning_rate) == (own.learning_rate, own.learning_rate)


@pytest.mark.parametrize(
    ("moved", "limit", "told"),
    [
        (1e-7, 1e-5, None),
        (8e-6, 2.4e-5, None),
        (2e-5, 6e-5, "2e-05, so that 6e-05 is allowed in place of 5e-05"),
        (1e-3, None, "1e-03, so that they are not compared"),
    ],
)
def test_a_limit_follows_rounding_as_long_as_faults_are_larger(
    moved: float, limit: float | None, told: str | None
) -> None:
    """Gradients in fp16 move one step by 3e-4."""
    run, _ = planned("cpu")
    twin = trial(run, "smooth twin")
    known = {"steps": 1, "slowdown": 1, "scale": 1.0, "ended": "", "rounding": {"parameters": moved}}
    found = twin.as_far_as(known).limit_of("parameters")
    assert found == (limit and pytest.approx(limit))
    notes = [note for note in twin.weakened_by(known) if "rounding alone" in note]
    assert [note.endswith(told or "") for note in notes] == [True] * (told is not None)
    (gradient,) = (each for each in trials(planned("cpu", precision="bf16")[0]) if each.name == "gradient")
    assert gradient.limit_of("parameters") == gradient.limit
