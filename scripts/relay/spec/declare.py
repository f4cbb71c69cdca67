"""The declaration of a field: its meaning, default, limits and label, and what it bears on.

These declarations are the source of the config's axes, a run's identity, its gate, the plan's table, the columns and
labels of the comparison, and the reference in `config/README.md`. They are plain dataclasses, so that a job can read
them with Python alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Bearing = Literal["identity", "gate", "job"]
Group = TypeVar("Group")


@dataclass(frozen=True)
class Axis:
    """Makes a field a key of a comparison in the config: it takes one value, or a list with one setting for each value.

    `null` describes the value used where the config gives none; without it, that is the field's default.
    """

    null: str | None = None


@dataclass(frozen=True)
class About:
    """What a field declares.

    `means` completes the sentence "the field is …". `limits` are keywords of pydantic's Field, such as ge=1.
    `label` is the text that names a value in tables, with `{}` for the value. A number's label has two forms,
    "for one|for several", and so has a boolean's, "for true|for false". Fields without a label are in no table.
    `bears_on` lists what depends on the value: "identity" (the run's result), "gate" (the arithmetic that a gate has to
    prove) and "job" (what the cluster is asked for).
    """

    means: str
    label: str
    bears_on: frozenset[str]
    axis: Axis | None
    limits: Mapping[str, Any]

    def word(self, value: Any) -> str:
        """A value as a table names it, such as '2 threads' or 'not compiled'."""
        singular, _, plural = self.label.partition("|")
        if isinstance(value, bool):
            return singular if value else plural
        return (plural if plural and value != 1 else singular).format(value)


@dataclass(frozen=True)
class SettingField:
    """A declared field: its group, name, type (without None) and default, and what it declares."""

    group: str
    name: str
    type: Any
    default: Any
    about: About


def declare(
    default: Any = MISSING,
    *,
    means: str,
    label: str = "",
    bears_on: str = "identity gate",
    axis: Axis | None = None,
    **limits: Any,
) -> Any:
    """A dataclass field with its declaration. Without `default`, the dataclass requires a value."""
    bearing_on = frozenset(bears_on.split())
    if unknown := bearing_on - set(get_args(Bearing)):
        raise ValueError(f"bears_on: {', '.join(sorted(unknown))}: unknown; allowed: {', '.join(get_args(Bearing))}")
    about = About(means, label, bearing_on, axis, limits)
    return field(default=default, metadata={"about": about})


def is_declared(each: Field[Any]) -> bool:
    """Whether a dataclass field was made by `declare`."""
    return "about" in each.metadata


def fields_of(group: str, kind: type) -> Iterator[SettingField]:
    """Every declared field of a group, by its name and dataclass, in their order."""
    types = get_type_hints(kind)
    for each in filter(is_declared, fields(kind)):
        default = None if each.default is MISSING else each.default
        yield SettingField(group, each.name, _given(types[each.name]), default, each.metadata["about"])


def _given(kind: Any) -> Any:
    """The type of a value that is given: of `float | None`, float."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    (given,) = (each for each in get_args(kind) if each is not NoneType)
    return given


def reset(group: Group, bearing: Bearing) -> Group:
    """The group, with every field that does not bear on `bearing` set to its default."""
    changes = {
        each.name: each.default
        for each in fields(group)  # type: ignore[arg-type]  # a dataclass
        if is_declared(each) and bearing not in each.metadata["about"].bears_on and each.default is not MISSING
    }
    return replace(group, **changes)  # type: ignore[type-var]


def bearing(group: Any, on: Bearing) -> dict[str, Any]:
    """The values of the group's fields that bear on `on`, by name."""
    return {
        each.name: getattr(group, each.name)
        for each in fields(group)
        if is_declared(each) and on in each.metadata["about"].bears_on
    }
