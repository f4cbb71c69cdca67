"""The specifications of jobs: a run, gate, reference or probe, which train, and a preflight, which does not.

The planner resolves each on the login node and writes it as JSON (`run.json`, `gate.json`, …). Every process of the job
reads that file. The same file holds the `Job`, with what Slurm is asked for; it is not part of the specification.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from relay.base.errors import UserError
from relay.base.files import read_json_or, write_json
from relay.base.typed import built
from relay.spec.declare import SettingField, fields_of, is_declared
from relay.spec.job import Job
from relay.spec.recipe import Batch, Length, Optimization, SpotChecks
from relay.spec.setting import Computation, Feeding, Place, Shape, StrategySpec
from relay.spec.tasks import DatasetSpec, TaskSpec

AnySetting = TypeVar("AnySetting", bound="Setting")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One combination of axes' values, for one strategy and one task.

    `task` is what is trained: its learning rate is scaled for this setting, and its optimizer and schedule are those
    of `optimization`.
    """

    task: TaskSpec
    dataset: DatasetSpec
    strategy: StrategySpec
    shape: Shape = Shape()
    place: Place = Place()
    computation: Computation = Computation()
    feeding: Feeding = Feeding()
    batch: Batch
    optimization: Optimization = Optimization()
    length: Length
    spot_checks: SpotChecks = SpotChecks()


# The groups of declared fields, by their names in a setting.
GROUPS = tuple((name, kind) for name, kind in get_type_hints(Setting).items() if any(map(is_declared, fields(kind))))


@cache
def setting_fields() -> tuple[SettingField, ...]:
    """Every declared field of a setting, in order."""
    return tuple(each for group in GROUPS for each in fields_of(*group))


def value_of(setting: Setting, each: SettingField) -> Any:
    """A declared field's value in a setting."""
    return getattr(getattr(setting, each.group), each.name)


def changed(setting: AnySetting, **values: Any) -> AnySetting:
    """A copy of the setting with other values. A name is that of a declared field in any group, or of a member."""
    groups = {each.name: each.group for each in setting_fields()}
    members = {name: value for name, value in values.items() if name not in groups}
    for group in {groups[name] for name in values if name in groups}:
        inner = {name: value for name, value in values.items() if groups.get(name) == group}
        members[group] = replace(getattr(setting, group), **inner)
    return replace(setting, **members)


@dataclass(frozen=True, kw_only=True)
class Specification(ABC):
    """What all specifications share: a kind, an id that contains a fingerprint of the content, and a file."""

    kind: ClassVar[str]
    id: str
    shape: Shape

    @property
    @abstractmethod
    def stack(self) -> str:
        """The software environment that its processes need."""

    def to_dict(self, job: Job | None = None) -> dict[str, Any]:
        """The content of the specification's file, ready for JSON."""
        return {"kind": self.kind, **asdict(self)} | ({"job": asdict(job)} if job else {})

    def write(self, path: Path, job: Job | None = None) -> None:
        """Write the specification and its job to a file, unless it has this content already."""
        values = json.loads(json.dumps(self.to_dict(job)))
        if values != read_json_or(path, None):  # every call comes here: unchanged files keep their times
            write_json(path, values)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a specification of this kind, or a kind derived from it.

        Raises UserError where the file cannot be read, has another kind or comes from another version; and OSError
        where its disk fails.
        """
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise UserError(_unread(path, error)) from None
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise UserError(f"{path}: is no {cls.kind} of this version ({fault}); make the plan again") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, for values read from JSON. Raises ValueError, TypeError or KeyError."""
        chosen = next((kind for kind in (cls, *KINDS) if getattr(kind, "kind", None) == values["kind"]), None)
        if chosen is None or not issubclass(chosen, cls):
            raise ValueError(f"its kind is {values['kind']!r}")
        return built(chosen, {name: value for name, value in values.items() if name not in ("kind", "job")})


@dataclass(frozen=True, kw_only=True)
class Training(Setting, Specification):
    """A setting to train, with an id and a seed."""

    kind: ClassVar[str] = "training"
    seed: int

    @classmethod
    def of(cls, setting: Setting, **more: Any) -> Self:
        """A run, gate, reference or probe of a setting. `more` has its id, its seed and its kind's other fields."""
        return cls(**{each.name: getattr(setting, each.name) for each in fields(Setting)}, **more)

    @property
    def stack(self) -> str:
        return self.strategy.stack


@dataclass(frozen=True, kw_only=True)
class Run(Training):
    """One repeat of a setting: the training that is measured. All repeats of a setting share `setting_id`."""

    kind: ClassVar[str] = "run"
    setting_id: str
    repeat: int


@dataclass(frozen=True, kw_only=True, order=True)
class OwnBatch:
    """A global batch size of the runs that share a gate, and their learning rate, which may be scaled for it."""

    global_batch_size: int
    learning_rate: float

    @classmethod
    def of(cls, setting: Setting) -> Self:
        """That of a run, or of its setting."""
        return cls(global_batch_size=setting.batch.global_batch_size, learning_rate=setting.task.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Gate(Training):
    """Short trainings with a setting's strategy. Their losses and parameters must agree with those of its reference.

    `batch` is small, so that settings of any batch size share the gate and its reference. A few steps at each of
    `own_batches` show what depends on the batch size.
    """

    kind: ClassVar[str] = "gate"
    own_batches: tuple[OwnBatch, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reference(Training):
    """The training that gates are compared with: a plain loop in a single process, without any strategy."""

    kind: ClassVar[str] = "reference"


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """What a search may try: multiples of `unit`, from `first` up to `most`, for at most `minutes`.

    A size fits where it leaves 1 - `memory_fraction` of the memory free. `node_memory_mb` is that of a node, where no
    job declares it.
    """

    unit: int
    first: int
    most: int
    minutes: float
    memory_fraction: float
    node_memory_mb: int | None = None


@dataclass(frozen=True, kw_only=True)
class Probe(Training):
    """A search for the largest size of a setting that fits into memory: a batch per device, or a depth.

    Each size is tried by a few steps, whose specification is a probe, too.
    """

    kind: ClassVar[str] = "probe"
    limits: SearchLimits


@dataclass(frozen=True, kw_only=True)
class SpotCheck(Training):
    """A few steps of a setting's runs, computed again in a plain loop in a single process; its id is the setting's."""

    kind: ClassVar[str] = "spot check"


@dataclass(frozen=True, kw_only=True)
class LibTorch(Training):
    """A trained model in a C++ program, beside Python; its id is that of the run's setting."""

    kind: ClassVar[str] = "libtorch"


@dataclass(frozen=True, kw_only=True)
class Preflight(Specification):
    """A check of the nodes, before the runs of one shape and stack use them.

    `node_needs` is what the runs' strategies require of each node. `feeding` has the largest number of data workers.
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


@dataclass(frozen=True, kw_only=True)
class TaskLook(Specification):
    """A look at a task on a node, where the login node lacks what the task needs. Its id is the name of the card.

    `task` is the task's name, `file` the user's; `options` are some of the task's. `dataset_root` and `dataset_mirror`
    are the config's.
    """

    kind: ClassVar[str] = "look"
    of_stack: str
    task: str
    file: str
    options: Mapping[str, Any]
    dataset_root: str | None
    dataset_mirror: str | None

    @property
    def stack(self) -> str:
        return self.of_stack


def _unread(path: Path, error: OSError) -> str:
    """Why a specification cannot be read; which one may be meant, where none of this name was written."""
    folder = path.parent
    others = folder.parent.iterdir() if not folder.exists() and folder.parent.is_dir() else ()
    close = get_close_matches(folder.name, [other.name for other in others], n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{path}: cannot be read: {error.strerror}; {meant}the plan writes it, at each call of Snakemake"


# What the plan writes, and jobs read hours later. The others' files are made from the plan's text as their jobs begin.
WRITTEN_AHEAD = (Run.kind, Gate.kind, Reference.kind, SpotCheck.kind)
KINDS: tuple[type[Specification], ...] = (Run, Gate, Reference, Probe, SpotCheck, LibTorch, Preflight, TaskLook)
