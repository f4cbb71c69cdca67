"""Options of strategies and tasks: which values fit a default, and which of a task's the config may set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from relay.base.errors import UserError
from relay.spec.messages import show, unknown


def allowed(default: Any, least: float | None = None) -> str:
    """In words, the values that may stand in the default's place; numbers are at least `least`."""
    if type(default) is int:
        return f"a whole number of at least {_least(default, least):g}"
    number = "a number" if least is None else f"a number of at least {least:g}"
    kinds = {bool: "true or false", float: number, str: "text"}
    return kinds.get(type(default), "a single value")


def fits(value: Any, default: Any, least: float | None = None) -> bool:
    """Whether a value may stand in the default's place."""
    if default is None:
        return True
    if isinstance(default, float):
        return type(value) in (int, float) and math.isfinite(value) and (least is None or value >= least)
    if type(default) is int:
        return type(value) is int and value >= _least(default, least)
    return type(value) is type(default)


def _least(default: int, least: float | None) -> float:
    return min(1, default) if least is None else least


def typed(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All options, with the given values in their defaults' places; a whole number for a float becomes one."""
    fitted = {k: float(v) if isinstance(defaults[k], float) else v for k, v in given.items()}
    return {**defaults, **fitted}


def check_task_options(given: Mapping[str, Any], defaults: Mapping[str, Any], task: str) -> None:
    """Raise UserError with one line for each option that a task does not have, or whose value does not fit."""
    if lines := list(_problems(given, defaults, task)):
        raise UserError("\n".join(lines))


def _problems(given: Mapping[str, Any], defaults: Mapping[str, Any], task: str) -> Iterator[str]:
    for name, value in given.items():
        place = f"config: task_options.{name}: {show(value)} is not allowed"
        if name not in defaults:
            yield unknown(f"{place}, {task} has no such option", name, defaults)
        elif not fits(value, default := defaults[name]):
            yield f"{place}; allowed: {allowed(default)}, such as {show(default)}"
