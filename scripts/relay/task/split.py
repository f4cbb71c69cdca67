"""A task's samples: which ones a step takes, and how they are read, alike in every process."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from relay.base.errors import UserError
from relay.process.generators import drawn_from, start_drawing
from relay.task import batches
from relay.task.batches import Batch
from relay.task.draws import GOLDEN
from relay.task.places import fail, mistake, of_machine
from relay.task.user import Task

SHOWN = 3  # samples in a line
SECONDS = 60.0  # for which batches are read to find one that is not finite
MEND = "mend the data, or leave such samples out of datasets()"
Shapes = tuple[tuple[int, ...], ...]  # of a sample's parts


def spread(count: int, wanted: int) -> torch.Tensor:
    """At most so many positions in a set, spread over it: a folder's first samples are often of one class.

    They are not at equal distances, for so may its classes be.
    """
    number = max(1, min(wanted, count))
    edges = torch.arange(number + 1) * count // number
    return (edges[:-1] + edges.diff() * (torch.arange(number) * GOLDEN % 1).double()).long()[:count]


class Chosen(NamedTuple):
    """Samples of one batch: their positions in the split, (n,) int64, and the epoch, which random samples depend on."""

    positions: torch.Tensor
    epoch: int = 0


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The permutation of an epoch. Seed and epoch are mixed through SeedSequence, so that no two pairs collide."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed(seed, epoch)))


def mixed(*numbers: int) -> int:
    """A seed of 63 bits that stands for these numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def chosen(count: int, global_batch_size: int, seed: int, step: int, index: int = 0, of: int = 1) -> Chosen:
    """Slice `index` of `of` of a step's global batch: a pure function of seed and step.

    The position in training is therefore one integer, and resuming needs no loader's state. Every epoch is a new
    permutation; its last, partial batch is left out.
    """
    epoch, position = divmod(step, count // global_batch_size)
    whole = _order(count, seed, epoch)[position * global_batch_size :][:global_batch_size]
    return Chosen(whole.chunk(of)[index], epoch)


class Split(Dataset[Any]):
    """One of a task's datasets, whose samples depend on nothing but the seed, the epoch and their position."""

    def __init__(
        self,
        task: Task,
        dataset: Any,
        seed: int,
        dtype: torch.dtype,
        name: str = "training",
        *,
        channels_last: bool = False,
    ) -> None:
        """`dtype` and `channels_last` are those of the training, `name` is that of the set for people.

        Raises UserError for a dataset without a length, and for an empty one.
        """
        self.task, self.dataset, self.seed, self.dtype, self.name = task, dataset, seed, dtype, name
        self.channels_last = channels_last
        kind = type(dataset).__name__
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            lacks = "is an IterableDataset" if isinstance(dataset, IterableDataset) else "has no length"
            raise UserError(
                f"datasets(): {kind} {lacks}; allowed: map-style datasets, with __len__ and __getitem__, because every "
                "strategy has to find the same samples by their numbers"
            )
        self.length = len(dataset)
        if not self.length:
            raise UserError(f"datasets(): {kind} has no samples; allowed: at least one")
        self.collate: Callable[[list[Any]], Any] = task.collate_fn or default_collate
        # Nothing is random in it, and a batch is an indexing. A user's own class may read it otherwise.
        self.tensors = dataset.tensors if type(dataset) is TensorDataset and task.collate_fn is None else None

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, which: Chosen) -> Batch:
        """A batch as the task's datasets store it, on the CPU. torch's DataLoader calls this in its workers.

        What draws random numbers gives the same samples in every process, and what joins them the same batch wherever
        it begins with the same sample. Raises UserError, with the samples' numbers, where one cannot be read, and where
        they make no batch.
        """
        if self.tensors is not None:
            return tuple(tensor[which.positions] for tensor in self.tensors)
        with drawn_from(0):
            positions = which.positions.tolist()
            return self._joined([self._drawn(position, which.epoch) for position in positions], positions)

    read = __getitems__

    def samples(self, which: Chosen) -> list[Any]:
        """The samples as the dataset gives them, before they are joined. Raises UserError as `read` does."""
        with drawn_from(0):
            return [self._drawn(position, which.epoch) for position in which.positions.tolist()]

    def _drawn(self, position: int, epoch: int) -> Any:
        start_drawing(mixed(self.seed, epoch, position))
        try:
            return self.dataset[position]
        except Exception as error:
            if of_machine(error):
                raise
            fail(type(self.task), "datasets", error, self.numbered([position]))

    def _joined(self, samples: list[Any], positions: list[int]) -> Batch:
        kind = type(self.task)
        try:
            batch = self.collate(samples)
        except Exception as error:
            if of_machine(error):
                raise
            if self.task.collate_fn is not None:
                fail(kind, "collate_fn", error, self.numbered(positions))
            reason = self.odd([(each, shapes(sample)) for each, sample in zip(positions, samples, strict=True)])
            reason = reason or f"{self.numbered(positions)}: {' '.join(str(error).split())[:160]}"
            raise mistake(
                kind,
                "datasets",
                f"the samples make no batch ({reason}); allowed: tensors, numbers, tuples and dicts of one shape each, "
                "or a method collate_fn(self, samples)",
            ) from error
        return tuple(batch) if isinstance(batch, list) else batch

    def numbered(self, positions: Sequence[int]) -> str:
        """Samples by their numbers: 'sample 77 of the training set'."""
        numbers = ", ".join(map(str, positions[:SHOWN]))
        more = f" and {len(positions) - SHOWN} more" if len(positions) > SHOWN else ""
        return f"sample{'s' if len(positions) > 1 else ''} {numbers}{more} of the {self.name} set"

    def odd(self, shapes_of_samples: Sequence[tuple[int, Shapes]]) -> str:
        """The sample that has other shapes than most, beside one of these; '' where all have the same."""
        usual = Counter(each for _, each in shapes_of_samples).most_common(1)[0][0]
        others = [(position, each) for position, each in shapes_of_samples if each != usual]
        if not others:
            return ""
        (number, other), like_most = others[0], next(position for position, each in shapes_of_samples if each == usual)
        differing = next(((a, b) for a, b in zip(other, usual, strict=False) if a != b), (other, usual))
        one, two = (str(list(each)) for each in differing)
        return f"{self.numbered([number])} has the shape {one}, sample {like_most} {two}"

    def not_finite(self, batch: Batch, positions: torch.Tensor) -> str:
        """Such as `, because batch[0] is nan in sample 77 of the training set; …`; '' where all numbers are finite.

        `positions` (n,) are the samples' numbers in the split. NaN counts before infinity. What is infinite in every
        sample, such as a mask that a model adds, is meant. It is asked only where a loss is not finite, so that no step
        waits for it.
        """
        floating = [(place, part) for place, part in batches.placed(batch) if _is_floating(part)]
        for wrong, word in ((torch.isnan, "nan"), (torch.isinf, "infinite")):
            for place, tensor in floating:
                samples = wrong(tensor).reshape(len(tensor), -1).any(1).cpu()
                if samples.any() and not (word == "infinite" and samples.all()):
                    numbers = sorted(positions.cpu()[samples].tolist())
                    return f", because {place} is {word} in {self.numbered(numbers)}; {MEND}"
        return ""

    def first_not_finite(self, read: Iterable[Chosen], device: torch.device) -> str:
        """The same for the first of several batches of the split that is not finite."""
        end = time.monotonic() + SECONDS
        for which in read:
            if because := self.not_finite(self.ready(self.read(which), device), which.positions):
                return because
            if time.monotonic() > end:
                break
        return ""

    def ready(self, batch: Batch, device: torch.device) -> Batch:
        """The batch on the device, transformed, with floating-point numbers in the training's type and order."""
        ready = batches.cast(self.task.transform(batches.moved(batch, device)), self.dtype)
        return batches.with_channels_last(ready) if self.channels_last else ready


def _is_floating(part: object) -> bool:
    return isinstance(part, torch.Tensor) and part.dim() > 0 and (part.is_floating_point() or part.is_complex())


def shapes(sample: Any) -> Shapes:
    """The shapes of a sample's parts."""
    return tuple(tuple(np.shape(part)) for part in tree_leaves(sample))
