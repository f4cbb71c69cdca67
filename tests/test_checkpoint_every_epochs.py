"""Checkpoints every so many epochs or steps, counted from the run's start, beside those by the clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chain_runs import Bench
from own_tasks import spec
from plans import CPU, only
from relay.base.errors import UserError
from relay.process.interruption import Interruption
from relay.process.ranks import Ranks
from relay.spec.setting import Length
from relay.training.agreement import Agreement, Moment
from relay.training.checkpoint import DONE, WRITING

pytest_plugins = ["chain_runs", "checkpointed", "plans"]


@pytest.mark.usefixtures("in_the_project")
def test_epochs_become_steps_of_the_run() -> None:
    run = only(CPU, checkpoint_every_epochs=1.5)
    assert run.length.checkpoint_every_steps == round(1.5 * run.length.steps_per_epoch)
    assert only(CPU).length.checkpoint_every_steps is None


@pytest.mark.usefixtures("in_the_project")
def test_they_may_be_given_in_steps_as_well_but_not_in_both() -> None:
    assert only(CPU, checkpoint_every_steps=10).length.checkpoint_every_steps == 10
    told = r"config: checkpoint_every_steps: 10 contradicts checkpoint_every_epochs 0.5; give one"
    with pytest.raises(UserError, match=told):
        only(CPU, checkpoint_every_steps=10, checkpoint_every_epochs=0.5)


def test_one_that_has_to_wait_for_the_one_before_stays_due(ranks: Ranks) -> None:
    length = Length(epochs=1, steps_per_epoch=40, total_steps=40, evaluate_every_steps=40, checkpoint_every_steps=4)
    saves: Any = SimpleNamespace(progress=WRITING, agree=lambda progress: progress == DONE, longest_save_seconds=0.0)
    agreement = Agreement(length, ranks, Interruption(deadline=None), saves, 0)
    agreement.next_step = 100  # the clock asks for nothing
    assert [step for step in range(1, 10) if agreement.due(step)] == [4, 8]
    assert not agreement.reach(4).save
    saves.progress = DONE
    assert agreement.reach(5).save
    agreement.saved = Moment.now(5)
    assert not agreement.reach(6).save
    assert agreement.reach(8).save


@pytest.mark.slow
def test_a_run_saves_at_them_whatever_the_clock_says(bench: Bench) -> None:
    length = {"total_steps": 10, "evaluate_every_steps": 10, "checkpoint_minutes": 60.0, "checkpoint_every_steps": 4}
    chain = bench.chain("run", spec("lenet-digits"), **length)
    assert chain.forked(0, 6).status == 0
    assert chain.checkpoints() == [4, 6]
