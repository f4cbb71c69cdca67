"""A task's optimizer and learning-rate schedule, as a combination of axes asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from relay.spec.tasks import TaskSpec

OPTIONS = ("momentum", "weight_decay")


def applied(task: TaskSpec, axes: Mapping[str, Any]) -> TaskSpec:
    """The task with the optimizer and the schedule that the axes ask for. An axis of None leaves the task's own.

    A value that the task has anyway changes nothing, so that it makes no other run.
    """
    known = of(task)
    options = {name: axes[name] for name in OPTIONS if axes[name] not in (None, known[name])}
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


def of(task: TaskSpec) -> dict[str, Any]:
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


def problems(task: TaskSpec, axes: Mapping[str, Any], epochs: float) -> Iterator[str]:
    """Why a run of so many epochs cannot be trained so. `task` is what `applied` returns."""
    if task.optimizer:  # else it is not known yet
        for name in OPTIONS:
            if axes[name] is not None and name not in task.card.optimizer_options:
                yield f"the optimizer of {task.name}, {task.optimizer}, has no option {name}"
    kind, warmup = task.schedule["kind"], task.schedule.get("warmup_epochs", 0)
    for name, member in (("learning_rate_step_epochs", "every_epochs"), ("learning_rate_step_gamma", "gamma")):
        if kind != "step" and axes[name] is not None:
            yield f"{name} {axes[name]:g} has no effect with learning_rate_schedule {kind}; use step"
        elif kind == "step" and task.schedule[member] is None:
            yield f"learning_rate_schedule step needs {name}, and {task.name} has none; give it"
    if kind == "scheduler" and not task.card.scheduler:
        yield f"learning_rate_schedule scheduler needs a method scheduler(), and {task.name} has none; write one"
    if kind == "scheduler" and warmup:
        yield f"learning_rate_warmup_epochs {warmup:g} have no effect with {kind}; put the warm-up into scheduler()"
    if warmup > epochs:
        yield f"learning_rate_warmup_epochs {warmup:g} are more than the run's {epochs:g} epochs"
