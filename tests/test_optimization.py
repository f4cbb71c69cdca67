"""A comparison's own momentum, weight decay and schedule: planned, the same in every strategy, resumed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from plans import CPU, planned, reasons
from relay.planning.table import words_by_id
from relay.task.bound import BoundTask
from relay.task.user import Task
from short_tasks import shipped

# The plan


@pytest.mark.usefixtures("in_the_project")
def test_each_value_is_another_run_with_a_gate_of_its_own_and_a_name_that_tells_it() -> None:
    step = {"learning_rate_schedule": "step", "learning_rate_step_epochs": 5, "learning_rate_step_gamma": 0.5}
    cosine = {"learning_rate_schedule": "cosine", "learning_rate_warmup_epochs": 2.5}
    asked = [CPU, CPU | {"momentum": [0, 0.5], "weight_decay": 1e-4}, CPU | step, CPU | cosine]
    found = planned(*asked)
    options = {tuple(sorted(each.setting.task.optimizer_options.items())) for each in found.settings}
    assert options == {(), (("momentum", 0.0), ("weight_decay", 1e-4)), (("momentum", 0.5), ("weight_decay", 1e-4))}
    schedules = [each.setting.task.schedule for each in found.settings]
    assert {"kind": "step", "every_epochs": 5, "gamma": 0.5} in schedules
    assert {"kind": "cosine", "warmup_epochs": 2.5} in schedules
    assert [len({run.id for run in found.runs}), len(found.gates), len(found.references)] == [5, 5, 5]
    words = words_by_id(found)
    assert words[found.settings[1].id] == (
        "cpu (1 proc, 1 thread, resident, momentum 0, weight decay 0.0001, constant learning rate, 0 warm-up epochs)"
    )
    assert "step learning rate" in words[found.settings[3].id]
    assert "cosine learning rate, 2.5 warm-up epochs" in words[found.settings[4].id]


@pytest.mark.usefixtures("in_the_project")
def test_what_a_schedule_lacks_is_the_reason_why_it_is_skipped() -> None:
    for why, asked in {
        "scheduler needs a method scheduler(), and lenet-digits has none": {"learning_rate_schedule": "scheduler"},
        "step needs learning_rate_step_gamma": {"learning_rate_schedule": "step", "learning_rate_step_epochs": 5},
        "has no effect with learning_rate_schedule constant; use step": {"learning_rate_step_gamma": 0.5},
    }.items():
        assert why in reasons(CPU | asked)[0]


# The learning rate of a step


def of_torch(kind: str, optimizer: torch.optim.Optimizer, per_epoch: int, total: int, warmup: int) -> LRScheduler:
    """torch's own schedule of so many steps, after a linear warm-up."""
    chosen: dict[str, LRScheduler] = {
        "constant": lr_scheduler.ConstantLR(optimizer, 1.0),
        "step": lr_scheduler.StepLR(optimizer, 2 * per_epoch, 0.5),
        "cosine": lr_scheduler.CosineAnnealingLR(optimizer, total - warmup),
    }
    if not warmup:
        return chosen[kind]
    rising = lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
    return lr_scheduler.SequentialLR(optimizer, [rising, chosen[kind]], [warmup])


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("kind", ["constant", "step", "cosine"])
@pytest.mark.parametrize("warmup_epochs", [0, 1.5])
def test_the_learning_rates_are_those_of_torchs_schedulers(kind: str, warmup_epochs: float) -> None:
    per_epoch, total = 6, 48
    schedule: dict[str, Any] = {"kind": kind, "warmup_epochs": warmup_epochs}
    schedule |= {"every_epochs": 2, "gamma": 0.5} if kind == "step" else {}
    mine = BoundTask(replace(shipped("lenet-digits").task, schedule=schedule), 5, "fp32", per_epoch, total)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], mine.spec.learning_rate)
    theirs = of_torch(kind, optimizer, per_epoch, total, mine.learning_rate.warmup_steps)
    assert mine.learning_rate.warmup_steps == warmup_epochs * per_epoch
    for step in range(total):
        assert mine.learning_rate(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12), step
        theirs.step()


def test_a_scheduler_of_the_tasks_own_is_followed() -> None:
    """Whatever order its steps are asked for in, as by a job that goes on."""

    class Own(Task):
        def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
            most = 10 * self.learning_rate
            return lr_scheduler.OneCycleLR(optimizer, most, total_steps=steps, cycle_momentum=False)

    mine = BoundTask(replace(shipped("lenet-digits").task, schedule={"kind": "scheduler"}), 5, "fp32", 6, 48)
    mine.own = Own()
    mine.own.learning_rate = mine.spec.learning_rate
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], mine.spec.learning_rate)
    theirs = mine.own.scheduler(optimizer, 48)
    rates = []
    for _ in range(48):
        rates += theirs.get_last_lr()
        optimizer.step()
        theirs.step()
    assert [mine.learning_rate(step) for step in (30, *range(48))] == [rates[30], *rates]
    assert max(rates) > 9 * mine.spec.learning_rate
