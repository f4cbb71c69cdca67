"""Runs and their like from flat values, as tests name them: each value finds its group by itself."""

from typing import Any, TypeVar

from relay.spec.run import GROUPS, Training, setting_fields
from relay.spec.setting import StrategySpec
from relay.spec.tasks import DatasetSpec, TaskSpec

Kind = TypeVar("Kind", bound=Training)
OF_STRATEGY = {"strategy": "name", "strategy_file": "file", "stack": "stack", "options": "options"}
OF_STRATEGY |= {"divides": "divides", "lossy": "lossy"}


def made(kind: type[Kind], *, task: TaskSpec, dataset: DatasetSpec, **values: Any) -> Kind:
    """A run, gate, reference or probe of these values; what is left out has its default."""
    of_strategy = {OF_STRATEGY[name]: values.pop(name) for name in list(values) if name in OF_STRATEGY}
    groups = {each.name: each.group for each in setting_fields()}
    given: dict[str, dict[str, Any]] = {name: {} for name, _ in GROUPS}
    for name in [name for name in values if name in groups]:
        given[groups[name]][name] = values.pop(name)
    built = {name: group(**given[name]) for name, group in GROUPS}
    return kind(task=task, dataset=dataset, strategy=StrategySpec(**of_strategy), **built, **values)
