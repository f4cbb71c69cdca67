"""From a prepared dataset to global batches: two ways to feed them, the same samples in the same order."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from relay.datasets import kinds, verified
from relay.datasets.arrays import Split as SplitName
from relay.datasets.manifest import load_split, verify
from relay.process import cpus
from relay.process.devices import is_gpu
from relay.process.interruption import SIGNALS
from relay.process.ranks import Ranks
from relay.spec.tasks import TaskSpec

Batch = tuple[torch.Tensor, torch.Tensor]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The permutation of an epoch. Seed and epoch are mixed through SeedSequence, so that no two pairs collide."""
    mixed = int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0] >> 1)
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed))


def batch_indices(count: int, global_batch_size: int, seed: int, step: int) -> torch.Tensor:
    """The samples of a step's global batch, (global_batch_size,) int64: a pure function of seed and step.

    The position in training is therefore one integer, and resuming needs no loader's state. Every epoch is a new
    permutation; its last, partial batch is left out.
    """
    epoch, position = divmod(step, count // global_batch_size)
    return _order(count, seed, epoch)[position * global_batch_size :][:global_batch_size]


def verify_on_further_nodes(directory: Path, nodes: int, ranks: Ranks) -> None:
    """Verify the dataset's bytes on each node but the first, where the job itself has looked. Collective.

    Raises UserError.
    """
    if nodes == 1:
        return
    if ranks.rank > 0 and ranks.local_rank == 0:
        verified.check(directory)
    ranks.wait_for_files()


class Split:
    """One split of a prepared dataset, for a task's network.

    `inputs` and `targets` are as they are stored; `reader`, the kind's, makes a network's inputs of them.
    """

    def __init__(self, directory: Path, name: SplitName, task: TaskSpec) -> None:
        """Maps the files. Raises UserError where the dataset is damaged or does not fit the task's network."""
        self.inputs, self.targets = load_split(directory, name)
        manifest = verify(directory)
        kind = kinds.load(manifest.kind)
        kind.check_fit(manifest.shape, task)
        self.reader = kind.reader(kind, manifest, task)

    def __len__(self) -> int:
        return len(self.targets)


class Resident:
    """The whole split as one tensor on the device; a batch is an indexing and what the kind's reader does."""

    def __init__(self, split: Split, device: torch.device, dtype: torch.dtype) -> None:
        self.split, self.device, self.dtype = split, device, dtype
        inputs = torch.from_numpy(np.array(split.inputs))
        self.inputs = split.reader.ahead(inputs).to(device)
        self.targets = torch.from_numpy(np.array(split.targets)).to(device)

    def fetch(self, indices: torch.Tensor) -> Batch:
        """Inputs (n, *input_shape) and targets of these samples, on the device."""
        if is_gpu(self.device):  # from pinned memory, so that the loop need not wait for the device
            indices = indices.pin_memory().to(self.device, non_blocking=True)
        return self.split.reader.batch(self.inputs[indices], self.dtype), self.targets[indices]

    def batches(self, index_lists: Iterable[torch.Tensor]) -> Iterator[Batch]:
        """A batch for each list of samples, in order."""
        return (self.fetch(indices) for indices in index_lists)


class Mapped:
    """A split that stays in its files; a batch is read when it is asked for. For proofs, which need few samples."""

    def __init__(self, split: Split, device: torch.device, dtype: torch.dtype) -> None:
        self.split, self.device, self.dtype = split, device, dtype

    def fetch(self, indices: torch.Tensor) -> Batch:
        """The same bits as `Resident.fetch`."""
        chosen = indices.numpy()
        inputs, targets = (torch.from_numpy(stored[chosen]) for stored in (self.split.inputs, self.split.targets))
        inputs = self.split.reader.ahead(inputs).to(self.device)
        return self.split.reader.batch(inputs, self.dtype), targets.to(self.device)

    def batches(self, index_lists: Iterable[torch.Tensor]) -> Iterator[Batch]:
        """A batch for each list of samples, in order."""
        return (self.fetch(indices) for indices in index_lists)


class _Samples(Dataset[Batch]):
    """Sample by sample, as the kind's reader makes inputs of them."""

    def __init__(self, split: Split) -> None:
        self.split, self.input_of = split, split.reader.sampler()

    def __getitem__(self, index: int) -> Batch:
        return self.input_of(self.split.inputs[index]), torch.from_numpy(np.array(self.split.targets[index]))


def _start_worker(_worker: int) -> None:
    """What reaches every process of a job ends no worker: its trainer still needs it for the step at which it saves."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    cpus.unbind()


class Streamed:
    """torch's DataLoader over single samples, with worker processes and pinned memory."""

    def __init__(self, split: Split, device: torch.device, dtype: torch.dtype, workers: int) -> None:
        self.samples, self.device, self.workers = _Samples(split), device, workers
        self.dtype = split.reader.kind.input_dtype(dtype)

    def batches(self, index_lists: Iterable[torch.Tensor]) -> Iterator[Batch]:
        """A batch for each list of samples, in order; one stream across epochs, so that workers start only once."""
        loader = DataLoader(
            self.samples,
            batch_sampler=(indices.tolist() for indices in index_lists),  # lazily
            num_workers=self.workers,
            worker_init_fn=_start_worker if self.workers else None,
            pin_memory=is_gpu(self.device),
            # Its own generator: the loader would otherwise draw a seed from the rank's, and a resumed run's dropout
            # would part from an uncut one's.
            generator=torch.Generator(),
        )
        for inputs, targets in loader:
            moved = inputs.to(self.device, non_blocking=True)
            yield moved.to(self.dtype), targets.to(self.device, non_blocking=True)


def feeder(kind: str, split: Split, device: torch.device, dtype: torch.dtype, workers: int) -> Resident | Streamed:
    """The way of feeding that a run declares: "resident" or "dataloader"."""
    return Resident(split, device, dtype) if kind == "resident" else Streamed(split, device, dtype, workers)
