"""What the config's comparisons ask for: each combination of their axes and options; and how many runs that makes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from relay.base.errors import UserError
from relay.config.comparisons import AXES, Comparison
from relay.config.config import Config


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
    counts = [_factors(comparison, config.repeats) for comparison in config.comparisons]
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


def _factors(comparison: Comparison, repeats: int) -> dict[str, int]:
    """What multiplies to the number of a comparison's runs: values of each axis and option, and repeats."""
    values = {name: getattr(comparison, name) for name in AXES}
    values |= {f"options.{name}": given for name, given in comparison.options.items()}
    return {name: len(_distinct(given)) for name, given in values.items()} | {"repeats": comparison.repeats or repeats}
