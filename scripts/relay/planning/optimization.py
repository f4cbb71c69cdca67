"""A task's learning rate, optimizer and schedule, as a combination of axes asks for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relay.spec.tasks import TaskSpec

OPTIMIZER_OPTIONS = ("momentum", "weight_decay")  # that are axes


def scaled(task: TaskSpec, scaling: str, global_batch_size: int) -> TaskSpec:
    """The task with its learning rate scaled from its own global batch size to this one."""
    growth = global_batch_size / task.global_batch_size
    factor = {"none": 1.0, "linear": growth, "square_root": math.sqrt(growth)}[scaling]
    return replace(task, learning_rate=task.learning_rate * factor)


def trained_as(task: TaskSpec, axes: Mapping[str, Any]) -> TaskSpec:
    """The task with the optimizer and the schedule that the axes ask for. An axis of None leaves the task's own.

    If a value equals the task's own, the run is the same.
    """
    own = optimization(task)
    options = {name: axes[name] for name in OPTIMIZER_OPTIONS if axes[name] not in (None, own[name])}
    return replace(task, optimizer_options={**task.optimizer_options, **options}, schedule=_schedule(task, axes))


def _schedule(task: TaskSpec, axes: Mapping[str, Any]) -> dict[str, Any]:
    own = task.schedule
    schedule: dict[str, Any] = {"kind": axes["learning_rate_schedule"] or own["kind"]}
    if schedule["kind"] == "step":
        schedule["every_epochs"] = axes["learning_rate_step_epochs"] or own.get("every_epochs")
        schedule["gamma"] = axes["learning_rate_step_gamma"] or own.get("gamma")
    warmup = axes["learning_rate_warmup_epochs"]
    warmup = own.get("warmup_epochs", 0) if warmup is None else warmup
    return schedule | ({"warmup_epochs": warmup} if warmup else {})


def optimization(task: TaskSpec) -> dict[str, Any]:
    """The optimizer and the schedule of a task, as fields of `Optimization`."""
    options, schedule = {**task.card.optimizer_options, **task.optimizer_options}, task.schedule
    return {
        "momentum": options.get("momentum"),
        "weight_decay": options.get("weight_decay"),
        "learning_rate_schedule": schedule["kind"],
        "learning_rate_step_epochs": schedule.get("every_epochs"),
        "learning_rate_step_gamma": schedule.get("gamma"),
        "learning_rate_warmup_epochs": float(schedule.get("warmup_epochs", 0.0)),
    }
