"""A task as a run trains it, as plain data; and its optimizer and schedule, as a combination of axes asks for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relay.spec.card import Card

OPTIMIZER_OPTIONS = ("momentum", "weight_decay")  # that are axes
BUILT_IN = Path(__file__).parents[1] / "tasks"


def built_in() -> list[str]:
    """The names of the built-in tasks: their files', with hyphens."""
    return sorted(p.stem.replace("_", "-") for p in BUILT_IN.glob("*.py") if not p.name.startswith("_"))


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task with its options, and what a comparison changes of it.

    `file` is the user's; '' for one of the package's own, which its `name` finds. `options` are all of the task's, with
    their values. `learning_rate` belongs to `global_batch_size`; a run with another batch may scale it
    (`learning_rate_scaling`). `optimizer` is the kind, in small letters. `optimizer_options` are those that a
    comparison replaces (momentum, weight_decay). `schedule`, `unit` and `small` are the task's; `metrics` names what it
    measures beside its loss, the leading one first.
    """

    name: str
    file: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "samples"
    units_per_sample: int = 1
    global_batch_size: int
    learning_rate: float
    epochs: float = 20.0
    optimizer: str = ""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"kind": "constant"})
    small: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    card: Card = field(default_factory=Card)


def scaled(task: TaskSpec, scaling: str, global_batch_size: int) -> TaskSpec:
    """The task with its learning rate scaled from its own global batch size to this one."""
    growth = global_batch_size / task.global_batch_size
    factor = {"none": 1.0, "linear": growth, "square_root": math.sqrt(growth)}[scaling]
    return replace(task, learning_rate=task.learning_rate * factor)


def trained_as(task: TaskSpec, axes: Mapping[str, Any]) -> TaskSpec:
    """The task with the optimizer and the schedule that the axes ask for. An axis of None leaves the task's own.

    A value that the task has anyway changes nothing, so that it makes no other run.
    """
    known = optimization(task)
    options = {name: axes[name] for name in OPTIMIZER_OPTIONS if axes[name] not in (None, known[name])}
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
