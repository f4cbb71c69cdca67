"""The learning rate of each step of a training: by the task's schedule, or by its own scheduler."""

import math
from functools import cached_property
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from relay.base.errors import UserError
from relay.spec.tasks import TaskSpec
from relay.task.user import Task

# In a group of an optimiser's parameters: by what its learning rate is multiplied.
FACTOR = "learning_rate_factor"


class LearningRate:
    """That of a step depends on the step alone, so that resuming needs no scheduler's state."""

    def __init__(self, spec: TaskSpec, own: Task, steps_per_epoch: int, total_steps: int) -> None:
        self.spec, self.own = spec, own
        self.steps_per_epoch, self.total_steps = steps_per_epoch, total_steps
        self._rates: list[float] = []  # those of steps, by the task's own scheduler

    def __call__(self, step: int) -> float:
        schedule, factor = self.spec.schedule, 1.0
        if schedule["kind"] == "scheduler":
            scheduler = self.scheduler
            while len(self._rates) <= step:
                scheduler.step()
                self._rates.append(float(scheduler.get_last_lr()[0]))
            return self._rates[step]
        warmup = self.warmup_steps
        begun = step - warmup
        if begun < 0:
            factor = (step + 1) / warmup
        elif schedule["kind"] == "step":
            factor = schedule["gamma"] ** (begun // self.steps_per_epoch // schedule["every_epochs"])
        elif schedule["kind"] == "cosine":
            left = max(1, self.total_steps - warmup)  # a warm-up may take all of a run
            factor = (1 + math.cos(math.pi * begun / left)) / 2
        return self.spec.learning_rate * factor

    @property
    def warmup_steps(self) -> int:
        """The steps in which the learning rate rises; the schedule begins after them."""
        return round(self.spec.schedule.get("warmup_epochs", 0) * self.steps_per_epoch)

    @cached_property
    def scheduler(self) -> LRScheduler:
        """The task's own, at the first step, of an optimiser that trains nothing. Raises UserError for what is none."""
        stand_in = torch.optim.SGD([torch.zeros(1)], self.spec.learning_rate, momentum=0.9)
        scheduler: Any = self.own.scheduler(stand_in, self.total_steps)
        if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not stand_in:
            raise UserError(
                f"task {self.spec.name}: scheduler() returned {type(scheduler).__name__}; allowed: one of torch's "
                "schedulers, of the optimiser that it is given"
            )
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UserError(
                f"task {self.spec.name}: scheduler() returned ReduceLROnPlateau, whose rates follow from what is "
                "measured; allowed: rates that follow from the step alone, such as CosineAnnealingLR's"
            )
        stand_in._opt_called = True  # type: ignore[attr-defined]  # or torch warns that no step was taken
        self._rates = [float(scheduler.get_last_lr()[0])]
        return scheduler


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The rate of the next step; groups with a rate of their own keep its ratio to the others'.

    A rate that is a tensor is changed in place, because a captured step reads it there.
    """
    for group in optimizer.param_groups:
        rate = learning_rate * group.get(FACTOR, 1.0)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
