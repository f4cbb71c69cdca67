"""Three ways to read a split: the same samples in the same order, bit for bit."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from relay.base.errors import UserError
from relay.chain.signals import SIGNALS
from relay.datasets import verified
from relay.process import cpus
from relay.process.devices import is_gpu
from relay.process.ranks import Ranks
from relay.task import batches, kept
from relay.task.batches import Batch
from relay.task.split import Chosen, Split


def verify_on_further_nodes(directory: Path, nodes: int, ranks: Ranks) -> None:
    """Verify the dataset's bytes on each node but the first, where the job itself has looked. Collective.

    Raises UserError.
    """
    if nodes == 1:
        return
    if ranks.rank > 0 and ranks.local_rank == 0:
        verified.check(directory)
    ranks.wait_for_files()


class Feeder:
    """A way to read a split: `split`, onto `device`. While nothing asks for batches, workers make `ahead` at most."""

    split: Split
    device: torch.device
    ahead: int = 0

    def raws(self, of: Iterable[Chosen]) -> Iterator[Any]:
        """For each batch, in order, what `ready` makes it of: tensors in host memory; pinned, where there is a GPU."""
        raise NotImplementedError(f"{type(self).__name__} has no raws()")  # abstract

    def ready(self, raw: Any) -> Batch:
        """The batch on the device, as the model takes it. What is on the device already is not copied."""
        return self.split.ready(raw, self.device)

    def batches(self, of: Iterable[Chosen]) -> Iterator[Batch]:
        """A batch for each, in order."""
        return map(self.ready, self.raws(of))

    def fetch(self, which: Chosen) -> Batch:
        """The batch of these samples."""
        return next(iter(self.batches([which])))


class Resident(Feeder):
    """The whole split as tensors on the device; a batch is an indexing, and the transform where it has to be."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self.split, self.device = split, device
        stored = split.read(Chosen(torch.arange(len(split))))
        self.transformed = kept.transformed(split, stored, device)
        # A copy, because tensors that map a file would be read from it in every step.
        self.stored = batches.moved(batches.each(torch.clone, stored), device) if self.transformed is None else None

    def raws(self, of: Iterable[Chosen]) -> Iterator[torch.Tensor]:
        """The samples' positions."""
        for which in of:  # from pinned memory, so that the loop need not wait for the device
            yield which.positions.pin_memory() if is_gpu(self.device) else which.positions

    def ready(self, raw: torch.Tensor) -> Batch:
        """The batch of the samples at these positions, on the device."""
        positions = raw.to(self.device, non_blocking=True)
        if self.transformed is not None:
            return kept.taken(self.transformed, positions)
        return self.split.ready(batches.taken(self.stored, positions), self.device)


class Mapped(Feeder):
    """A split that stays where it is; a batch is read when it is asked for. For proofs, which need few samples."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self.split, self.device = split, device

    def raws(self, of: Iterable[Chosen]) -> Iterator[Any]:
        """The samples as the dataset stores them."""
        return map(self.split.read, of)


def _start_worker(_worker: int) -> None:
    """What reaches every process of a job ends no worker: its trainer still needs it for the step at which it saves."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    cpus.unbind()


class Streamed(Feeder):
    """torch's DataLoader over single samples, with worker processes and pinned memory."""

    def __init__(self, split: Split, device: torch.device, workers: int) -> None:
        self.split, self.device, self.workers, self.ahead = split, device, workers, 2 * workers  # torch's default

    def raws(self, of: Iterable[Chosen]) -> Iterator[Any]:
        """What the loader reads; one stream across epochs, so that workers start only once."""
        loader = DataLoader(
            self.split,
            batch_sampler=of,  # type: ignore[arg-type]  # lazily; `Split.__getitems__` takes what it gives
            collate_fn=_as_it_is,
            num_workers=self.workers,
            worker_init_fn=_start_worker if self.workers else None,
            # From 3.14 on, Python would fork them from a process that does not know the modules of a user's task.
            multiprocessing_context="fork" if self.workers and sys.platform == "linux" else None,
            pin_memory=is_gpu(self.device),
            # Its own generator: the loader would otherwise draw a seed from the rank's, and a resumed run's dropout
            # would part from an uncut one's.
            generator=torch.Generator(),
        )
        return _read(loader)


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _read(loader: DataLoader[Any]) -> Iterator[Batch]:
    """The loader's batches. A user's mistake that a worker tells comes with its traceback: the line alone is told."""
    reading = iter(loader)
    try:
        yield from reading
    except UserError as error:
        raise UserError(str(error).rstrip().rpartition("UserError: ")[2]) from None
    finally:
        # Whoever keeps an error keeps the workers. Python would end them by a signal, which they ignore, and wait.
        if isinstance(reading, _MultiProcessingDataLoaderIter):
            reading._shutdown_workers()


def feeder(kind: str, split: Split, device: torch.device, workers: int) -> Feeder:
    """The way of feeding that a run declares: "resident" or "dataloader"."""
    return Resident(split, device) if kind == "resident" else Streamed(split, device, workers)
