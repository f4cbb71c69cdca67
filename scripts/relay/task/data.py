"""Three ways to read a split: the same samples in the same order, bit for bit."""

import os
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
from relay.process import cpus, system
from relay.process.devices import is_gpu
from relay.process.generators import drawn_from
from relay.process.ranks import Ranks
from relay.task import batches
from relay.task.batches import Batch
from relay.task.split import Chosen, Split, spread

MOST_BYTES = 2**30  # of the transformed samples that a process keeps
PIECE = 1000  # samples that are transformed together


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
        self.transformed = _transformed(split, stored, device)
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
            return _taken(self.transformed, positions)
        return self.split.ready(batches.taken(self.stored, positions), self.device)


def _transformed(split: Split, stored: Batch, device: torch.device) -> Batch | None:
    """All samples on the device, as batches of them would be made of what is `stored`.

    None where they have no room, or where what becomes of a sample depends on its batch. Nothing of `stored` changes.
    """
    count = len(split)

    def ready(positions: torch.Tensor) -> Batch:
        return split.ready(batches.taken(stored, positions), device)

    try:
        with drawn_from(0):
            first = ready(torch.arange(min(PIECE, count)))
            if not _is_by_sample(first) or not _has_room(first, count, device):
                return None
            whole = batches.each(lambda part: _space(part, count), first)
            for positions in torch.arange(count).split(PIECE):
                for space, part in zip(batches.leaves(whole), batches.leaves(ready(positions)), strict=True):
                    space[positions[0] : positions[-1] + 1] = part
            some = (spread(count, PIECE // 10).flip(0), torch.tensor([count - 1]))
            return whole if all(batches.same(ready(each), _taken(whole, each.to(device))) for each in some) else None
    except Exception:  # the transform wants batches of one size; if it is a mistake, the first step tells it
        return None


def _taken(whole: Batch, positions: torch.Tensor) -> Batch:
    """The samples at these positions of what `_transformed` gave, each part in the order in memory that it has."""
    return batches.each(lambda part: _rows(part, positions), whole)


def _rows(part: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """What an indexing gives, in half of its time: whole rows of a contiguous tensor are copied at once."""
    if part.is_contiguous():
        return torch.index_select(part, 0, positions)
    return torch.index_select(part.permute(0, 2, 3, 1), 0, positions).permute(0, 3, 1, 2)  # channels last


def _is_by_sample(batch: Batch) -> bool:
    """Whether the first dimension of all parts counts the samples, as far as one batch can tell."""
    parts = [part for _, part in batches.placed(batch)]
    return all(isinstance(part, torch.Tensor) and part.shape[:1] == parts[0].shape[:1] != () for part in parts)


def _has_room(batch: Batch, count: int, device: torch.device) -> bool:
    """Whether so many samples take at most half of the memory there is for this process."""
    needed = sum(part[0].nbytes for part in batches.leaves(batch)) * count
    if is_gpu(device):
        free, _ = torch.cuda.mem_get_info(device)
        return needed <= min(MOST_BYTES, free // 2)
    return needed <= min(MOST_BYTES, system.memory_bytes() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) // 2)


def _space(part: torch.Tensor, count: int) -> torch.Tensor:
    """Room for so many samples, in the order in memory in which these are."""
    last = part.dim() == 4 and part.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if last else torch.contiguous_format
    return torch.empty((count, *part.shape[1:]), dtype=part.dtype, device=part.device, memory_format=order)


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
