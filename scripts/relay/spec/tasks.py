"""A task as a run trains it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay.spec.card import Card

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
