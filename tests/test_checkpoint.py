"""Checkpoints: a training goes on from them bit for bit, and the last ones are kept."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch

from chain_runs import DROPOUT
from checkpointed import Training, filled, names
from own_tasks import OWN, spec
from relay.process.interruption import Interruption
from relay.process.ranks import Ranks
from relay.run_folder.sealed import complete
from relay.spec.tasks import TaskSpec
from relay.training.checkpoint import Checkpoints

pytest_plugins = ["chain_runs", "checkpointed"]


@pytest.mark.parametrize(
    "its",
    [
        DROPOUT,  # Adadelta, a schedule of steps
        spec("lenet-digits"),  # SGD with momentum
        spec("linear-random10"),  # SGD without any state
        spec(str(OWN / "own_loss.py")),  # a tied weight, samples one by one, a loss of the model's own
    ],
    ids=lambda value: value.name,
)
def test_a_resumed_training_goes_on_bit_for_bit(
    ranks: Ranks, prepared: Path, checkpoints: Checkpoints, its: TaskSpec
) -> None:
    uncut = Training(ranks, prepared, its)
    expected = uncut.train(12)
    first = Training(ranks, prepared, its)
    losses = first.train(7)
    checkpoints.save(first.strategy, 7)
    second = Training(ranks, prepared, its)
    torch.manual_seed(99)  # where another process's generator may be
    second.step = checkpoints.resume(second.strategy, 0, 12) or 0
    assert second.step == 7
    assert losses + second.train(5) == expected
    wanted = uncut.state()
    assert all(torch.equal(value, wanted[name]) for name, value in second.state().items())


def test_saving_changes_nothing(ranks: Ranks, prepared: Path, checkpoints: Checkpoints) -> None:
    """A run with many checkpoints ends as one with none."""
    plain, saving = Training(ranks, prepared), Training(ranks, prepared)
    torch.manual_seed(5)
    expected = plain.train(6)
    torch.manual_seed(5)
    losses = []
    for step in range(1, 7):
        losses += saving.train(1)
        checkpoints.save(saving.strategy, step)
    assert losses == expected


def test_a_copy_that_the_user_made_is_neither_counted_nor_removed(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 2)
    shutil.copytree(checkpoints.directory / "step-2", checkpoints.directory / "step-2.bak")
    filled(checkpoints, training, 4, 6)
    assert complete(checkpoints.directory) == [6, 4]
    assert names(checkpoints) == ["step-2.bak", "step-4", "step-6"]


def test_the_margin_before_the_end_holds_two_saves_and_the_longest_step() -> None:
    now = time.time()
    watching = Interruption(deadline=now + 100)
    assert watching.reason is None
    watching.leave_room(save_seconds=20, step_seconds=45)
    assert watching.margin_seconds == 95
    watching.leave_room(save_seconds=1, step_seconds=1)
    assert watching.margin_seconds == 95  # it never shrinks
    watching.leave_room(save_seconds=20, step_seconds=55)
    assert watching.reason == "deadline"


def test_ten_is_newer_than_nine(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 1, 8, 9, 10)
    assert names(checkpoints) == ["step-10", "step-9"]
    assert checkpoints.resume(training.strategy, 0, 100) == 10


def test_a_leftover_of_a_save_that_was_killed_is_never_resumed_and_goes(
    checkpoints: Checkpoints, training: Training
) -> None:
    """Killed at its last moment: everything is there, but not under its final name."""
    filled(checkpoints, training, 2)
    shutil.copytree(checkpoints.directory / "step-2", checkpoints.directory / "partial-3")
    assert checkpoints.resume(training.strategy, 0, 100) == 2
    filled(checkpoints, training, 4)
    assert names(checkpoints) == ["step-2", "step-4"]


def test_only_steps_of_the_segment_are_resumed(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 4, 8)
    assert checkpoints.resume(training.strategy, 0, 6) == 4
    assert checkpoints.resume(training.strategy, 0, 8) == 8
    assert checkpoints.resume(training.strategy, 5, 7) is None
    assert checkpoints.resume(training.strategy, 9, 12) is None


def test_a_training_that_starts_again_keeps_its_own_checkpoints(
    checkpoints: Checkpoints, training: Training, ranks: Ranks, prepared: Path
) -> None:
    """What lies beyond the step that it has come to belongs to an older attempt: it must not push out the new ones."""
    filled(checkpoints, training, 40, 41)
    again = Training(ranks, prepared)
    filled(checkpoints, again, 3)
    assert names(checkpoints) == ["step-3"]
    filled(checkpoints, again, 6, 9)
    assert names(checkpoints) == ["step-6", "step-9"]


def test_the_scale_of_fp16_goes_on_where_it_was(ranks: Ranks, prepared: Path, checkpoints: Checkpoints) -> None:
    first, second = (Training(ranks, prepared, precision="fp16") for _ in range(2))
    assert first.strategy.scaler
    assert second.strategy.scaler
    first.train(2)
    first.strategy.scaler.update(8192.0)
    checkpoints.save(first.strategy, 2)
    assert checkpoints.resume(second.strategy, 0, 10) == 2
    assert second.strategy.scaler.state_dict() == first.strategy.scaler.state_dict()
    assert second.strategy.scaler.get_scale() == 8192.0


def test_a_parameter_without_state_has_none_after_resuming(
    ranks: Ranks, prepared: Path, checkpoints: Checkpoints
) -> None:
    """One that no gradient has reached yet: torch would give it the state of a step that it never made."""
    first, second = (Training(ranks, prepared, spec("lenet-digits")) for _ in range(2))
    for trained in (first, second):
        next(trained.strategy.model.parameters()).requires_grad_(False)
    first.train(2)
    for trained in (first, second):
        next(trained.strategy.model.parameters()).requires_grad_(True)
    checkpoints.save(first.strategy, 2)
    expected = first.train(3)
    second.step = checkpoints.resume(second.strategy, 0, 10) or 0
    states = [len(trained.strategy.optimizer.state) for trained in (first, second)]
    assert second.train(3) == expected
    assert states[1] == states[0] - 1
