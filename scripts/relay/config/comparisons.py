"""The comparisons of the config, each a strategy or a command with its axes; and what combinations they ask for."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from relay.base.errors import UserError
from relay.config.blocks import Read, Segment
from relay.spec.run import setting_fields
from relay.spec.script import STARTERS
from relay.spec.setting import Stack
from relay.spec.yaml_file import Block, Natural, Text, fits, refused

T = TypeVar("T")


class OneOrSeveral:
    """Marks an axis: it takes one value or a list of values, and everybody after this sees a list."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def as_list(value: Any) -> Any:
            return value if isinstance(value, list) else [value]

        return core_schema.no_info_before_validator_function(as_list, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}


def _single(value: Any) -> Any:
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise PydanticCustomError("no_single_value", "is no single value")
    return value


Values = Annotated[list[T], Field(min_length=1), OneOrSeveral()]
# It can be a part of a file's name.
Name = Annotated[str, fits(r"[A-Za-z][A-Za-z0-9_.-]*", "letters, digits, '_', '-' and '.', a letter first")]
OptionValue = Annotated[
    Any, AfterValidator(_single), WithJsonSchema({"type": ["boolean", "integer", "number", "string", "null"]})
]


def _axes() -> dict[str, Any]:
    """The declared fields that a comparison may ask for, as fields of a pydantic model."""
    axes: dict[str, Any] = {}
    for each in setting_fields():
        if (axis := each.about.axis) is None:
            continue
        kind: Any = Annotated[each.type, Field(**each.about.limits)]
        default, means = each.default, each.about.means
        if axis.null is not None:
            kind, default, means = kind | None, None, f"{means}; null: {axis.null}"
        values_of: Any = Values
        axes[each.name] = (values_of[kind], Field(default=[default], description=means))
        if each.name == "global_batch_size":
            about = "samples per step and device, in place of global_batch_size"
            axes["batch_per_device"] = (Values[Natural | None], Field(default=[None], description=about))
    return axes


if TYPE_CHECKING:
    from relay.config.config import Config

    class _Axes(Block):
        strategy: str
else:
    _strategy = (Text, Field(default="", description="name of a strategy; none where a command is given"))
    _Axes = create_model("_Axes", __base__=Block, strategy=_strategy, **_axes())

AXES = tuple(_axes())


class Comparison(_Axes):
    """A strategy, or a command, and its axes. An axis takes one value or a list; every combination is a setting."""

    command: Text | None = Field(
        default=None,
        description="in place of a strategy, the command line of a training script of your own, measured as it stands. "
        "Placeholders such as {processes_per_node} become the values of axes and options (docs/measure-your-script.md)",
    )
    name: Name | None = Field(default=None, description="name of a command; null: that of its script's file")
    read: Read = Field(default=Read(), description="what is read of a command's output")
    links: dict[Text, Text] = Field(
        default={},
        description="files and folders that a command finds, by their paths from where it runs, such as "
        "{../data: /scratch/cifar}",
    )
    stack: Stack = Field(default="torch", description="the software that a command uses")
    options: dict[str, Values[OptionValue]] = Field(
        default={},
        description="the strategy's own options, each an axis: {name: value or list}. Of a command: placeholders of "
        "your own",
    )
    task_options: dict[str, Values[OptionValue]] = Field(
        default={}, description="the task's options for these runs, each an axis, in place of the config's of that name"
    )
    repeats: Natural | None = Field(default=None, description="repeats of these runs; null: the config's")
    segment: Segment | None = Field(default=None, description="segment of these runs; null: the config's")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """A command has the place of a strategy: its name is what results are called by."""
        if isinstance(given, dict) and isinstance(command := given.get("command"), str) and not given.get("strategy"):
            return given | {"strategy": given.get("name") or _name_of(command)}
        return given

    @model_validator(mode="after")
    def _one_of_both(self) -> Comparison:
        if self.command is None:
            if not self.strategy:
                raise refused("gives neither a strategy nor a command; allowed: one of them")
            if alone := sorted({"name", "read", "links", "stack"} & self.model_fields_set):
                raise refused(f"{alone[0]} is for a command, and there is none")
        elif self.strategy != (self.name or _name_of(self.command)):
            raise refused("gives a strategy and a command; allowed: one of them")
        elif other := next((key for key in ("segment", "task_options") if getattr(self, key)), None):
            raise refused(f"{other} is for a strategy, not for a command")
        return self


def _name_of(command: str) -> str:
    """The name of a command that has none: that of the first script in it, or of its program."""
    try:
        words = shlex.split(command) or [""]
    except ValueError:  # told where the command is read
        words = command.split() or [""]
    modules = [after.rpartition(".")[2] for word, after in pairwise(words) if word == "-m" and after not in STARTERS]
    scripts = (word for word in words if word.endswith((".py", ".sh")))
    named = next(scripts, modules[0] if modules else words[0])
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", named.rpartition("/")[2].removesuffix(".py").removesuffix(".sh"))
    return stem.lstrip("-_0123456789") or "script"


@dataclass(frozen=True)
class Combination:
    """One combination of a comparison's axes and options, before defaults are filled in.

    `comparison` is the index of the comparison in the config. An axis is None where the config gives no value.
    """

    comparison: int
    strategy: str
    axes: Mapping[str, Any]
    options: Mapping[str, Any]
    task_options: Mapping[str, Any]


def expand(config: Config) -> Iterator[Combination]:
    """Every combination of each comparison's axes and options, and of the task's options, in the config's order."""
    for index, comparison in enumerate(config.comparisons):
        axes = {name: getattr(comparison, name) for name in AXES}
        of_task = {**config.task_options, **comparison.task_options}
        for chosen, own, task in product(*map(_combinations, (axes, comparison.options, of_task))):
            yield Combination(index, comparison.strategy, chosen, own, task)


def _combinations(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*map(_distinct, axes.values()))]


def _distinct(values: Sequence[Any]) -> list[Any]:
    """The values without duplicates. 1, 1.0 and True are different values."""
    return list({(type(value), value): value for value in values}.values())


def task_options(config: Config) -> list[dict[str, Any]]:
    """Every combination of the task's options that the config or one of its comparisons asks for."""
    return list({options_key(each.task_options): dict(each.task_options) for each in expand(config)}.values())


def options_key(options: Mapping[str, Any]) -> str:
    """Options as a text that tells them apart."""
    return json.dumps(options, sort_keys=True)


def check_runs(config: Config) -> None:
    """Raises UserError where the axes make more runs than `most_jobs`."""
    counts = [_factors(comparison, config) for comparison in config.comparisons]
    total = sum(math.prod(factors.values()) for factors in counts)
    if total <= config.most_jobs:
        return
    index = max(range(len(counts)), key=lambda i: math.prod(counts[i].values()))
    product_ = " × ".join(f"{count:,} {name}" for name, count in counts[index].items() if count > 1)
    raise UserError(
        f"config: comparisons: {total:,} runs are not allowed; allowed: at most {config.most_jobs:,} (most_jobs); "
        f"the most are of comparisons[{index}], {config.comparisons[index].strategy}: "
        f"{product_} = {math.prod(counts[index].values()):,}; give fewer values, or raise most_jobs"
    )


def _factors(comparison: Comparison, config: Config) -> dict[str, int]:
    """What multiplies to the number of a comparison's runs: values of each axis and option, and repeats."""
    values = {name: getattr(comparison, name) for name in AXES}
    values |= {f"options.{name}": given for name, given in comparison.options.items()}
    of_task = {**config.task_options, **comparison.task_options}
    values |= {f"task_options.{name}": given for name, given in of_task.items()}
    repeats = comparison.repeats or config.repeats
    return {name: len(_distinct(given)) for name, given in values.items()} | {"repeats": repeats}
