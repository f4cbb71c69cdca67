"""What a job is given: a run, a gate, a reference or a probe to train, or a preflight; all resolved on the login node.

Each is a kind of its own, written as JSON (`run.json`, `gate.json`, …) and read by every process. Beside it in the same
file stands the `Job`: what Slurm is asked for, which is no part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_origin, get_type_hints

from relay.base.errors import UserError
from relay.base.files import read_json, write_json
from relay.spec.dataset import DatasetSpec
from relay.spec.declare import Declared, declared, is_declared
from relay.spec.job import Job
from relay.spec.setting import Batch, Computation, Feeding, Length, Place, Shape, StrategySpec
from relay.spec.tasks import TaskSpec

Value = TypeVar("Value")
AnySetting = TypeVar("AnySetting", bound="Setting")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One combination of axes' values for one strategy, of one task: what is trained, and how.

    `task` is already adapted to it: its learning rate is the scaled one.
    """

    task: TaskSpec
    dataset: DatasetSpec
    strategy: StrategySpec
    shape: Shape = Shape()
    place: Place = Place()
    computation: Computation = Computation()
    feeding: Feeding = Feeding()
    batch: Batch
    length: Length


# The groups of declared fields, by their names in a setting.
GROUPS = tuple((name, kind) for name, kind in get_type_hints(Setting).items() if any(map(is_declared, fields(kind))))


def setting_fields() -> tuple[Declared, ...]:
    """Every declared field of a setting, in order."""
    return declared(GROUPS)


def value_of(setting: Setting, each: Declared) -> Any:
    """A declared field's value in a setting."""
    return getattr(getattr(setting, each.group), each.name)


def changed(setting: AnySetting, **values: Any) -> AnySetting:
    """The setting with other values, each by its name: of a declared field, whatever its group, or of its own."""
    groups = {each.name: each.group for each in setting_fields()}
    mine = {name: value for name, value in values.items() if name not in groups}
    for group in {groups[name] for name in values if name in groups}:
        inner = {name: value for name, value in values.items() if groups.get(name) == group}
        mine[group] = replace(getattr(setting, group), **inner)
    return replace(setting, **mine)


@dataclass(frozen=True, kw_only=True)
class Specification:
    """What every kind has in common: a name, which is a fingerprint of what it declares, and its file."""

    kind: ClassVar[str]
    id: str
    shape: Shape

    @property
    def stack(self) -> str:
        """The software environment that its processes need."""
        raise NotImplementedError  # each kind says it

    def to_dict(self, job: Job | None = None) -> dict[str, Any]:
        """What its file holds: everything that a job has to know."""
        return {"kind": self.kind, **asdict(self)} | ({"job": asdict(job)} if job else {})

    def write(self, path: Path, job: Job | None = None) -> None:
        """Write its file, with the job that it goes to, unless that is what stands there already."""
        values = json.loads(json.dumps(self.to_dict(job)))
        if values != read_json(path):  # each call of the workflow comes here, for every run
            write_json(path, values)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read its file; raises FileNotFoundError, and UserError where it is none of this kind and version."""
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise UserError(f"{path}: is no {cls.kind} of this version ({fault}); make the plan again") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict` after a trip through JSON, of this kind or one derived from it."""
        chosen = next((kind for kind in (cls, *KINDS) if getattr(kind, "kind", None) == values["kind"]), None)
        if chosen is None or not issubclass(chosen, cls):
            raise ValueError(f"its kind is {values['kind']!r}")
        return built(chosen, {name: value for name, value in values.items() if name not in ("kind", "job")})


@dataclass(frozen=True, kw_only=True)
class Training(Setting, Specification):
    """A setting that processes train: with a name and a seed."""

    kind: ClassVar[str] = "training"
    seed: int

    @property
    def stack(self) -> str:
        return self.strategy.stack


@dataclass(frozen=True, kw_only=True)
class Run(Training):
    """One repeat of a setting: the training that is measured. `setting_id` names what its repeats have in common."""

    kind: ClassVar[str] = "run"
    setting_id: str
    repeat: int


@dataclass(frozen=True, kw_only=True)
class Gate(Training):
    """A short training under a setting's strategy, which has to compute what its reference computes."""

    kind: ClassVar[str] = "gate"


@dataclass(frozen=True, kw_only=True)
class Reference(Training):
    """The single process that gates are compared with: a plain loop, which knows nothing of strategies."""

    kind: ClassVar[str] = "reference"


@dataclass(frozen=True, kw_only=True)
class Probe(Training):
    """A few steps of a setting at some batch: does it fit into the memory?"""

    kind: ClassVar[str] = "probe"


@dataclass(frozen=True, kw_only=True)
class Preflight(Specification):
    """A look at the nodes that runs of one shape and stack will use.

    `node_needs` is what the runs' strategies require of each node; `feeding` has the most data workers of the runs.
    """

    kind: ClassVar[str] = "preflight"
    of_stack: str
    place: Place
    compile: bool
    feeding: Feeding = Feeding()
    node_needs: tuple[str, ...] = ()

    @property
    def stack(self) -> str:
        return self.of_stack


KINDS: tuple[type[Specification], ...] = (Run, Gate, Reference, Probe, Preflight)


def built(kind: type[Value], values: Mapping[str, Any]) -> Value:
    """A dataclass of nested dataclasses from what `asdict` and JSON made of it: lists become tuples again.

    Raises TypeError and KeyError where the values are those of another class.
    """
    types = get_type_hints(kind)
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    if unknown := sorted(set(values) - names):
        raise KeyError(f"unknown: {', '.join(unknown)}")

    def of(name: str, value: Any) -> Any:
        if is_dataclass(types[name]) and isinstance(types[name], type):
            return built(types[name], value)
        return tuple(value) if get_origin(types[name]) is tuple and isinstance(value, list) else value

    return kind(**{name: of(name, value) for name, value in values.items()})
