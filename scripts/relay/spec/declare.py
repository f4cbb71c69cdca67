"""How a field declares itself: its meaning, default, limits and label, and what it bears on.

The config's axes, a run's identity, its gate, the plan's table, the columns and labels of the comparison, and the
reference in `config/README.md` are made from these declarations. Plain dataclasses: a job reads them with Python alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, TypeVar, get_type_hints

Bearing = Literal["identity", "gate", "job"]
Group = TypeVar("Group")


@dataclass(frozen=True)
class Axis:
    """How the config may ask for a field: one value, or a list of which each makes a setting.

    `null` says what stands in for a value that is not given; without it, the field's own default does. `type` is the
    type of a value in the config where it is not the field's own.
    """

    null: str | None = None
    type: Any = None


@dataclass(frozen=True)
class About:
    """What a field says of itself.

    `means` completes "the field is …". `label` is how tables name a value: a text with `{}` for the value, for numbers
    "one form|form for several", for booleans "form for true|form for false"; empty for what no table names. `bears_on`:
    "identity" (another value is another result), "gate" (another value is another arithmetic, to be proven on its own),
    "job" (another value asks the cluster for something else). `limits` are those of pydantic's Field, such as ge=1.
    """

    means: str
    label: str
    bears_on: frozenset[str]
    axis: Axis | None
    limits: Mapping[str, Any]

    def word(self, value: Any) -> str:
        """A value as a table names it, such as '2 threads' or 'not compiled'."""
        one, _, other = self.label.partition("|")
        if isinstance(value, bool):
            return one if value else other
        return (other if other and value != 1 else one).format(value)


@dataclass(frozen=True)
class Declared:
    """A declared field: the group that it stands in, its name, type and default, and what it says of itself."""

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
    """A dataclass field that declares itself; without a default it has to be given."""
    about = About(means, label, frozenset(bears_on.split()), axis, limits)
    return field(default=default, metadata={"about": about})


def is_declared(each: Field[Any]) -> bool:
    """Whether a dataclass field was made by `declare`."""
    return "about" in each.metadata


@cache
def declared(groups: tuple[tuple[str, type], ...]) -> tuple[Declared, ...]:
    """Every declared field of these groups (name and dataclass), in their order."""
    return tuple(_declared(groups))


def _declared(groups: tuple[tuple[str, type], ...]) -> Iterator[Declared]:
    for name, kind in groups:
        types = get_type_hints(kind)
        for each in fields(kind):
            if is_declared(each):
                default = None if each.default is MISSING else each.default
                yield Declared(name, each.name, types[each.name], default, each.metadata["about"])


def reset(group: Group, bearing: Bearing) -> Group:
    """The group with every field at its default that does not bear on this."""
    changes = {
        each.name: each.default
        for each in fields(group)  # type: ignore[arg-type]  # a dataclass
        if is_declared(each) and bearing not in each.metadata["about"].bears_on and each.default is not MISSING
    }
    return replace(group, **changes)  # type: ignore[type-var]


def bearing(group: Any, on: Bearing) -> dict[str, Any]:
    """The group's values that bear on this, by name."""
    return {
        each.name: getattr(group, each.name)
        for each in fields(group)
        if is_declared(each) and on in each.metadata["about"].bears_on
    }
