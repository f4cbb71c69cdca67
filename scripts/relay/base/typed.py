"""What was read from JSON, as the dataclass that was written: a value of another type than declared is a mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from relay.base.files import read_json_or

Value = TypeVar("Value")


def read(kind: type[Value], path: Path) -> Value | None:
    """The dataclass that a file holds; None where the file is missing, damaged, or holds something else."""
    return typed_or_none(kind, read_json_or(path, None))


def typed_or_none(kind: type[Value], content: Any) -> Value | None:
    """The dataclass of a file's content; None where it is none."""
    try:
        return built(kind, content)
    except (TypeError, KeyError, ValueError):
        return None


def built(kind: type[Value], values: Mapping[str, Any]) -> Value:
    """A dataclass, with all that is nested in it, from the JSON of its `asdict`.

    Lists become tuples again, and texts the numbers that dictionaries have as keys. Raises KeyError for an unknown
    name, and TypeError for a missing one and for a value of another type.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{kind.__name__}: {values!r:.40} is no dictionary")
    types = _types(kind)  # type: ignore[arg-type]  # a class is hashable
    if unknown := sorted(set(values) - types.keys()):
        raise KeyError(f"unknown: {', '.join(unknown)}")
    return kind(**{name: _of(types[name], value) for name, value in values.items()})


def _of(declared: Any, value: Any) -> Any:
    """The value, as it is declared. Raises TypeError where it is something else."""
    origin, args = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return None if value is None and type(None) in args else _of_one(args, value)
    if declared is Any or (origin is Literal and value in args):
        return value
    if is_dataclass(declared) and isinstance(declared, type):
        return built(declared, value)
    if origin in (tuple, list, Sequence) and isinstance(value, list | tuple):
        each = args if origin is tuple and args[-1] is not ... else args[:1] * len(value)
        items = [_of(kind, item) for kind, item in zip(each, value, strict=True)]
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {args[0](key): _of(args[1], item) for key, item in value.items()}
    wanted = {float: int | float, tuple: list | tuple}.get(declared, origin or declared)
    if not isinstance(value, wanted) or (isinstance(value, bool) and declared in (int, float)):
        raise TypeError(f"{value!r:.40} is not of type {declared}")
    return value


def _of_one(kinds: Sequence[Any], value: Any) -> Any:
    """The value as the first of these types that it can be of."""
    for kind in kinds:
        try:
            return _of(kind, value)
        except (TypeError, KeyError, ValueError):
            continue
    raise TypeError(f"{value!r:.40} is of none of the types {', '.join(map(str, kinds))}")


@cache  # a comparison reads thousands of runs, and Python looks up the hints anew each time
def _types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}
