"""What was read from JSON, as the dataclass that was written: a value of another type than declared is a mistake."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
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
    """The dataclass of a file's content; None where it is none.

    Names that it does not have are passed over: a job and the code that its run has frozen may be of two versions.
    """
    try:
        return built(kind, content, passing_over=True)
    except (TypeError, KeyError, ValueError):
        return None


def built(kind: type[Value], values: Mapping[str, Any], *, passing_over: bool = False) -> Value:
    """A dataclass, with all that is nested in it, from the JSON of its `asdict`.

    Lists become tuples again, and texts the numbers that dictionaries have as keys. Raises KeyError for an unknown
    name, unless these are passed over, and TypeError for a missing one and for a value of another type.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{kind.__name__}: {values!r:.40} is no dictionary")
    types = _types(kind)  # type: ignore[arg-type]  # a class is hashable
    if (unknown := sorted(set(values) - types.keys())) and not passing_over:
        raise KeyError(f"unknown: {', '.join(unknown)}")
    members = {}
    for name in types.keys() & values.keys():
        try:
            members[name] = _of(types[name], values[name], passing_over)
        except (TypeError, KeyError, ValueError) as error:
            raise type(error)(f"{name}: {error.args[0]}") from None
    if lacking := [name for name in _needed(kind) if name not in members]:  # type: ignore[arg-type]
        raise TypeError(f"lacks '{lacking[0]}'")
    return kind(**members)


def _of(declared: Any, value: Any, passing_over: bool) -> Any:
    """The value, as it is declared. Raises TypeError where it is something else."""
    origin, args = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return None if value is None and type(None) in args else _of_one(args, value, passing_over)
    if declared is Any or (origin is Literal and value in args):
        return value
    if is_dataclass(declared) and isinstance(declared, type):
        return built(declared, value, passing_over=passing_over)
    if origin in (tuple, list, Sequence) and isinstance(value, list | tuple):
        each = args if origin is tuple and args[-1] is not ... else args[:1] * len(value)
        if len(each) != len(value):
            raise TypeError(f"{value!r:.40} has {len(value)} parts; allowed: {len(each)}")
        items = [_of(kind, item, passing_over) for kind, item in zip(each, value, strict=True)]
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        names = [args[0](key) if args[0] in (int, float) else _of(args[0], key, passing_over) for key in value]
        return {name: _of(args[1], item, passing_over) for name, item in zip(names, value.values(), strict=True)}
    if origin is Literal:
        raise TypeError(f"{value!r:.40} is none of {', '.join(map(repr, args))}")
    # A text is a sequence to Python, and none of those that are declared.
    wanted = {float: int | float, tuple: list | tuple}.get(declared, list if origin is Sequence else origin or declared)
    if not isinstance(value, wanted) or (isinstance(value, bool) and declared in (int, float)):
        raise TypeError(f"{value!r:.40} is not of type {getattr(declared, '__name__', declared)}")
    return value


def _of_one(kinds: Sequence[Any], value: Any, passing_over: bool) -> Any:
    """The value as the first of these types that it can be of. Raises what the first says."""
    first: Exception | None = None
    for kind in kinds:
        try:
            return _of(kind, value, passing_over)
        except (TypeError, KeyError, ValueError) as error:
            first = first or error
    assert first is not None
    raise first


@cache
def _needed(kind: type) -> tuple[str, ...]:
    """The fields without a default."""
    return tuple(each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING)


@cache  # a comparison reads thousands of runs, and Python looks up the hints anew each time
def _types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}
