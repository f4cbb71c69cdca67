"""What users write: a task is one file with one class that derives from `relay.Task`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from relay.base.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import Dataset

# Attributes that describe a task. Every other plain value of a class is an option of it.
DESCRIBING = (
    "unit", "units_per_sample", "global_batch_size", "learning_rate", "epochs", "schedule", "small", "data",
    "data_version", "generated", "files", "dataset_root", "dataset_mirror",
)  # fmt: skip
Option = bool | int | float | str


class Task:
    """A model, its data, its loss and its optimiser: what is trained.

    `unit` is what a speed counts, in the plural; a sample is `units_per_sample` of them. `learning_rate` belongs to
    `global_batch_size`, the samples of one optimiser step over all devices. `schedule` multiplies the learning rate:
    {"kind": "constant"}, {"kind": "step", "every_epochs": n, "gamma": g} or {"kind": "cosine"}; each may have
    "warmup_epochs", after which it begins. A method `scheduler` takes its place.

    `clip_grad_norm` is the largest norm of the gradients, over all parameters, that a step takes. Larger ones are
    scaled down to it, once a step. It is an option, too.

    Every further attribute of the class that is a plain number, text, True or False is an option, which the config sets
    by `task_options`. `small` holds options for proofs of a model that is too large for float64.

    `data` names what `prepare` makes; tasks with one name share it. Where there is none, it is the task's own name.
    Change `data_version` when `prepare` makes something else. `generated` says that it takes seconds and no network, so
    that a dry run may call it, too.

    `files` names data files beside the task's own, as plain texts. They are part of the task, and jobs have them.

    A batch is a tensor, or a tuple, list or dict of tensors. The first dimension of each counts the samples.
    """

    unit: str = "samples"
    units_per_sample: int = 1
    global_batch_size: int = 32
    learning_rate: float = 1e-3
    epochs: float = 20.0
    schedule: ClassVar[Mapping[str, Any]] = {"kind": "constant"}
    clip_grad_norm: float | None = None
    small: ClassVar[Mapping[str, Option]] = {}
    data: str | None = None
    data_version: int = 1
    generated: bool = False
    files: ClassVar[Sequence[str]] = ()
    # Set by the config while data are prepared: a copy that the user has, and an address in place of the usual ones.
    dataset_root: Path | None = None
    dataset_mirror: str | None = None
    # May be a method `collate_fn(self, samples)`: from a list of samples to a batch.
    collate_fn: Callable[[Sequence[Any]], Any] | None = None

    def prepare(self, folder: Path) -> None:
        """Make the data in an empty folder: download, check, convert. Called once, on the login node."""

    def datasets(self, folder: Path) -> tuple[Dataset[Any], Dataset[Any]]:
        """The training and the test set, map-style, from what `prepare` made in the folder.

        What is random in a sample follows from the seed, the epoch and the sample, whichever process reads it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `datasets`")

    def transform(self, batch: Any) -> Any:
        """A whole batch, on its device, as the model takes it. It draws no random numbers."""
        return batch

    def model(self) -> nn.Module:
        """The model with its initial parameters, on the CPU."""
        raise NotImplementedError(f"{type(self).__name__} has no method `model`")

    def inputs(self, batch: Any) -> Any:
        """What of a batch the model is called with: a tuple is its arguments, a dict its keywords.

        Of a tuple or list all but the last part, which is the target; of a dict the keys that the model takes.
        """
        if isinstance(batch, (tuple, list)) and len(batch) > 1:
            return tuple(batch[:-1])
        return batch

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        """The mean loss over the batch's samples, a scalar; as it stands here, the one that the model returns."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        loss = outputs if loss is None and getattr(outputs, "ndim", None) == 0 else loss
        if loss is None:
            raise UserError(
                f"{type(self).__name__}: loss is missing: the model returns {type(outputs).__name__} without a loss; "
                "allowed: a method `loss(self, outputs, batch)`, or a model that returns its loss"
            )
        return loss

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of these parameters, at `self.learning_rate`."""
        raise NotImplementedError(f"{type(self).__name__} has no method `optimizer`")

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        """One of torch's schedulers for a run of so many steps; it is stepped after each, and follows from them alone.

        Its optimiser is a stand-in with one group at `self.learning_rate`, whose rates become those of the task's own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `scheduler`")

    def metrics(self, outputs: Any, batch: Any) -> Mapping[str, torch.Tensor | float]:
        """Further means over the batch's samples, by name, for evaluations. The first one leads in the report."""
        return {}

    def final_metrics(self, means: Mapping[str, float]) -> Mapping[str, torch.Tensor | float]:
        """What evaluations tell, from the means of `metrics` over the whole set: R² from means of squares, say."""
        return means

    def blocks(self, model: nn.Module) -> list[nn.Module] | None:
        """The modules that sharding, recomputation and pipelines take as units; None: they are found."""
        return None

    def tensor_plan(self, model: nn.Module) -> Mapping[str, str] | None:
        """How tensor parallelism splits modules, by name: column, row, embedding or experts; None: it is found."""
        return None


def options_of(task: Task | type[Task]) -> dict[str, Option]:
    """The options of a task with their values: its class's for a class, its own for an object."""
    kind = task if isinstance(task, type) else type(task)
    names = (name for owner in reversed(kind.__mro__) for name in vars(owner) if owner is not Task)
    named = (name for name in dict.fromkeys(names) if not name.startswith("_") and name not in DESCRIBING)
    plain = (name for name in named if isinstance(getattr(kind, name), Option))  # a property is none, whatever it gives
    return {name: value for name in plain if isinstance(value := getattr(task, name), Option)}
