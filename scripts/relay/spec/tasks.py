"""A task as plain data: its card, its data, how a run trains it; and what a look at its file tells of all that."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from relay.base.errors import UserError
from relay.base.files import write_json
from relay.base.typed import built

ROUNDING = 1e-9
LOOKED_AT = 256  # samples of each set, spread over it, at most


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One tensor of a batch: where it stands in it, one sample's shape, and its type."""

    place: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a task is, seen once for each content of its file. None is what is not known.

    Data: `batch` are the tensors that a step gets. `equal_shapes`: all samples have one shape, so that they can be kept
    in memory, where they take `sample_bytes` each. `random_samples`: a sample differs from epoch to epoch.

    Model: `parameters` are counted. `cuts` are the names of modules at which a pipeline may cut it, `uncuttable` says
    why there are none. `matrices` is the part of the parameters that tensor parallelism splits, or of those that are
    trained, where it is less; each of `divisible`, by name, is a number that its processes must divide. `experts` are
    those of a mixture. `tied` are names that share a
    parameter. `dropout` and `batch_norm` name modules or functions, `synced` those of SyncBatchNorm, `buffers` what a
    forward pass changes beside BatchNorm's, and `draws` what else draws random numbers; `outside` are generators beside
    torch's that they come from. `differentiates`: the forward pass takes gradients. `without_gradient` are parameters
    that the first step leaves out; `conditional` are those that some samples leave out and others not, as experts are.
    `forward_flops` are floating-point operations of a sample's forward pass.
    `channels_last`: it is for pictures, and computes the same where the channels of each pixel lie side by side in
    memory; False where it cannot be computed so on CPUs.

    Options: `no_options` are plain values of the class that are no options, because of their type.

    Outputs: `outputs_along` has, for each tensor whose samples the first dimension does not count, its place and the
    dimension that counts them; None where none does. The place `outputs` is any other one. `training_outputs_along` is
    the same in training mode. `outputs_within` are places of whole numbers that count within a batch, such as each
    row's number of its graph: those of a batch's halves, one after the other, are not those of the batch.

    Optimiser: `optimizer_options` are the momentum and the weight decay with which the task makes it, as far as it has
    such options; those of its first group of parameters. `grouped_by_place`: it treats a parameter otherwise where it
    gets a part of the parameters, as each stage of a pipeline does. `optimizer_scope` is what its step reads to change
    a number: the "element" alone, its "tensor" (LAMB, Muon), or all of the "model" (clipping by a norm). `scheduler`:
    the task has one of its own.

    Loss: `dependent` says on what else than its samples a batch's loss depends: on a state, on how a batch is divided,
    or on padding. `mean_difference` is how far a
    batch's loss is from the weighted losses of its parts, in float64: a mean over samples where it is at most
    `ROUNDING`. `cross_entropy`: torch's cross entropy of the model's outputs is all of it.
    """

    no_options: tuple[str, ...] = ()
    batch: tuple[Leaf, ...] = ()
    equal_shapes: bool | None = None
    sample_bytes: int | None = None
    random_samples: bool | None = None
    parameters: int | None = None
    cuts: tuple[str, ...] | None = None
    uncuttable: str | None = None
    matrices: float | None = None
    divisible: tuple[tuple[str, int], ...] = ()
    experts: int = 0
    tied: tuple[tuple[str, ...], ...] = ()
    dropout: tuple[str, ...] = ()
    batch_norm: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    differentiates: bool = False
    without_gradient: tuple[str, ...] = ()
    conditional: tuple[str, ...] = ()
    forward_flops: int | None = None
    channels_last: bool | None = None
    outputs_along: Mapping[str, int | None] = field(default_factory=dict)
    training_outputs_along: Mapping[str, int | None] = field(default_factory=dict)
    outputs_within: tuple[str, ...] = ()
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    grouped_by_place: bool = False
    optimizer_scope: str = "element"
    scheduler: bool = False
    synced: tuple[str, ...] = ()
    dependent: str = ""
    mean_difference: float | None = None
    cross_entropy: bool = False

    def along(self, training: bool) -> Mapping[str, int | None]:
        """Where outputs count samples, in training or in evaluation mode."""
        return self.training_outputs_along if training else self.outputs_along

    @property
    def compared_along(self) -> dict[str, int | None]:
        """The same of predictions, without what proofs do not compare."""
        return {**self.outputs_along, **dict.fromkeys(self.outputs_within)}

    @property
    def leaves_out(self) -> bool:
        """Whether there are parameters that get no gradient in some step."""
        return bool(self.without_gradient or self.conditional)

    @property
    def unrepeatable(self) -> str:
        """Why no other process can repeat a step of the training, in a sentence; '' where nothing is known of that."""
        if self.dependent or not self.outside:
            return self.dependent
        return f"the model draws random numbers from {' and '.join(self.outside)}, which no other process repeats"


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The data of a task: what its `prepare` makes, once for all runs.

    `name` is the task's `data`, and `version` a digest of what decides its content: `prepare`, the options that it
    reads, and the task's `data_version`.
    """

    name: str
    version: str
    train_count: int
    test_count: int

    @property
    def directory_name(self) -> str:
        """Its folder below `results/datasets/`."""
        return f"{self.name}-{self.version}"


BUILT_IN = Path(__file__).parents[1] / "tasks"


def built_in() -> list[str]:
    """The names of the built-in tasks: their files', with hyphens."""
    return sorted(p.stem.replace("_", "-") for p in BUILT_IN.glob("*.py") if not p.name.startswith("_"))


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task with its options, and what a comparison changes of it.

    `file` is the user's; '' for one of the package's own, which its `name` finds. `options` are all of the task's, with
    their values. `learning_rate` belongs to `global_batch_size`; a run with another batch may scale it
    (`learning_rate_scaling`). `optimizer` is the kind, in small letters. `optimizer_options` are those that a
    comparison replaces (momentum, weight_decay). `schedule`, `unit` and `small` are the task's; `metrics` names what it
    measures beside its loss, the leading one first.
    """

    name: str
    file: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "samples"
    units_per_sample: int = 1
    global_batch_size: int
    learning_rate: float
    epochs: float = 20.0
    optimizer: str = ""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"kind": "constant"})
    small: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    card: Card = field(default_factory=Card)


# Exit statuses of `relay card`: the task's data, what it imports, or a GPU is not there.
UNPREPARED, NO_PACKAGE, NO_GPU = 3, 4, 5
WITHOUT_GPU = (
    "; no GPU is here: leave out .cuda() and device=…, because strategies put the model on its device. A model that "
    "computes on GPUs alone is looked at by a job: with device: cuda, under the profile of a cluster"
)


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A task with its card, its data, and what the look warns of.

    `task.options` are all options of the task with their values, those of the class where none were given.
    `task.file` is as the config writes it; '' for a built-in task. `warnings` are lines for the user.
    """

    task: TaskSpec
    dataset: DatasetSpec
    warnings: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write it as JSON. Raises OSError."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The inverse of `write`. Raises UserError where the file cannot be read or comes from another version."""
        try:
            return built(cls, json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise UserError(f"{path}: is no card of this version ({fault}); delete it, it is made anew") from None
