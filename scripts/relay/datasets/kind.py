"""The contract of a kind of dataset. Each kind is one file in `kinds/`; nothing else knows what kinds there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from relay.base.errors import UserError
from relay.datasets.sources import Source
from relay.spec.dataset import DatasetSpec

if TYPE_CHECKING:
    import torch

    from relay.datasets.manifest import Manifest
    from relay.spec.tasks import TaskSpec

# Writes a dataset's four arrays into a folder, and returns what the manifest says of where they came from.
Maker = Callable[[DatasetSpec, Path], str]


@dataclass(frozen=True, kw_only=True)
class Known:
    """A dataset that can be prepared: an entry in its kind's file.

    `origin`: public files, or a function that makes the arrays. `family`: datasets whose names begin so are made in the
    same way, and their shape and counts can be chosen.
    """

    spec: DatasetSpec
    origin: Source | Maker
    family: str | None = None


class Reader:
    """How a training turns stored samples into its network's inputs: here, a cast to the training's type.

    There are two ways, which must give the same bits. A loader that keeps the whole split in memory calls `ahead` once,
    and `batch` for each batch. A loader that reads samples one by one calls what `sampler` returns for each of them,
    and casts their batch to the kind's `input_dtype`.
    """

    def __init__(self, kind: Kind, manifest: Manifest, task: TaskSpec) -> None:
        self.kind, self.manifest, self.task = kind, manifest, task

    def ahead(self, stored: torch.Tensor) -> torch.Tensor:
        """The stored samples (N, …) in the shape of the network's inputs, in their own type."""
        return stored

    def batch(self, samples: torch.Tensor, training: torch.dtype) -> torch.Tensor:
        """A batch of what `ahead` gave, on any device, as inputs of a training of that type."""
        return samples.to(self.kind.input_dtype(training))

    def sampler(self) -> Callable[[np.ndarray], torch.Tensor]:
        """What makes one input of one stored sample, before the cast to a type; it goes to worker processes."""
        return _as_tensor


def _as_tensor(sample: np.ndarray) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.array(sample))


class Kind:
    """What datasets of a kind have in common: a file in `kinds/`, named as the kind, derives one class from it.

    `unit` is what a speed counts, in the plural. `dimensions` names those of a sample. `inputs` and `targets` are the
    stored types. `channels_last`: whether a batch has channels that can be stored last. `loader_packages`: what the
    reader's `sampler` imports beside torch and numpy. `reader` turns samples into a network's inputs. `datasets` are
    the known ones of this kind.
    """

    unit: ClassVar[str] = "samples"
    dimensions: ClassVar[tuple[str, ...]]
    inputs: ClassVar[str]
    targets: ClassVar[str]
    channels_last: ClassVar[bool] = False
    loader_packages: ClassVar[tuple[str, ...]] = ()
    reader: ClassVar[type[Reader]] = Reader
    datasets: ClassVar[Sequence[Known]] = ()

    def units_per_sample(self, spec: DatasetSpec) -> int:
        """How many units one sample is."""
        return 1

    def input_dtype(self, training: torch.dtype) -> torch.dtype:
        """The type of a network's inputs in a training of that type."""
        return training

    def check(self, spec: DatasetSpec) -> None:
        """Raises UserError for a shape with other dimensions, or for classes that the targets cannot have."""
        sizes = len(self.dimensions)
        if len(spec.shape) != sizes or not all(is_count(size) for size in spec.shape):
            form = ",".join(self.dimensions)
            raise UserError(f"shape: {list(spec.shape)} must be {sizes} positive whole number(s) ({form})")
        if spec.classes is None:
            if not np.issubdtype(self.targets, np.floating):
                raise UserError("classes: None must be a whole number of at least 2: the targets are classes")
        elif np.issubdtype(self.targets, np.floating):
            raise UserError(f"classes: {spec.classes!r} must be left out: {spec.kind} are regression data")
        elif not is_count(spec.classes) or spec.classes < 2:
            raise UserError(f"classes: {spec.classes!r} must be a whole number of at least 2")

    def check_fit(self, shape: tuple[int, ...], task: TaskSpec) -> None:
        """Raises UserError where samples of this shape cannot be made inputs of the task's network."""
        if shape != task.input_shape:
            raise UserError(f"task {task.name}: the network takes {task.input_shape}, the dataset has {shape}")

    def statistics(self, inputs: np.ndarray) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
        """Mean and standard deviation of the training inputs, for the manifest; None where they are not normalised."""
        return None, None


def is_count(value: object) -> bool:
    """Whether it is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
