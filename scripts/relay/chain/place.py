"""The place in the data: which epoch, how many of its batches were taken, and the random numbers of its order.

An epoch's order is drawn when its loader is asked for an iterator. So the generators are kept as they were then, beside
how they are now. To go on, the first are restored, the order is drawn again, the batches that were trained are passed
over, and then the generators are restored as they are now.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from .generators import generators, restore

FEEDING = (DataLoader, Sampler, Dataset)
HOLDING = ("sampler", "batch_sampler", "dataset")  # also where they are properties
MOST_HELD = 100  # of a list, such as the data sets that ConcatDataset joins; a data set's samples are no such list


@dataclass
class Place:
    """`step`: batches taken since the run's start. `batch`: those of this epoch. `epoch`: counted from 0.

    `order` is the state of the generators at the epoch's start; empty before the first. `loader` is what tells the
    epoch's batches (`epoch_size`).
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    order: dict[str, Any] = field(default_factory=dict)
    loader: dict[str, int | None] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return asdict(self)

    def end_epoch(self) -> None:
        """Go to the first batch of the next epoch."""
        self.epoch, self.batch, self.order = self.epoch + 1, 0, {}


def epoch_size(loader: Any) -> dict[str, int | None]:
    """How many batches an epoch of the loader has, and of how many samples; None where it does not tell."""
    try:
        count = len(loader)
    except TypeError:
        count = None
    return {"batches": count, "batch_size": getattr(loader, "batch_size", None)}


def batches(loader: Iterable[Any], place: Place, *, reread: bool = False) -> Iterator[Any]:
    """The batches of an epoch that are left from `place` on.

    torch's own DataLoader of a map-style dataset passes over batches without reading their samples; any other loader,
    and this one with `reread`, reads them and drops them.
    """
    own = own_generators(loader)
    _set_epoch(loader, place.epoch)
    if not place.batch:
        place.order = generators(own)
        return iter(loader)
    now = generators(own)
    restore(place.order, own)

    def arrived() -> None:
        restore(now, own)

    if not reread and type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset):
        return iter(_passing(loader, place.batch, arrived))
    return _read_again(iter(loader), place.batch, arrived)


def own_generators(loader: Any) -> list[torch.Generator]:
    """The generators that the user gave to a loader, or to what it holds, each once."""
    given = (getattr(holder, "generator", None) for holder in within(loader))
    return list(dict.fromkeys(each for each in given if isinstance(each, torch.Generator)))


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to whatever draws its order from it, such as a DistributedSampler, wherever it is held."""
    for holder in within(loader):
        if callable(set_epoch := getattr(holder, "set_epoch", None)):
            set_epoch(epoch)


def within(loader: Any) -> list[Any]:
    """A loader, and the loaders, samplers and data sets that it holds, at any depth, each once."""
    holders: list[Any] = []
    unread = [loader]
    while unread:
        each = unread.pop(0)
        if any(each is other for other in holders):
            continue
        holders.append(each)
        held = list(getattr(each, "__dict__", {}).values())
        held += [item for several in held if type(several) in (list, tuple) for item in several[:MOST_HELD]]
        unread += [item for item in held if isinstance(item, FEEDING) or hasattr(item, "set_epoch")]
        # What has one of these names feeds the loader, whatever it is.
        unread += [item for name in HOLDING if (item := getattr(each, name, None)) is not None]
    return holders


def _passing(loader: DataLoader[Any], count: int, arrived: Callable[[], None]) -> DataLoader[Any]:
    """The same loader, whose sampler passes over its first indices."""
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    passing = copy.copy(loader)
    # DataLoader forbids to assign it, because an iterator in use would not see it; this one has none yet.
    vars(passing)[name] = _Passing(getattr(loader, name), count, arrived)
    return passing


@dataclass
class _Passing:
    """A sampler without its first `count` indices; `arrived` is called when they have been passed."""

    sampler: Any
    count: int
    arrived: Callable[[], None]

    def __iter__(self) -> Iterator[Any]:
        return _read_again(iter(self.sampler), self.count, self.arrived)

    def __len__(self) -> int:
        return len(self.sampler) - self.count


def _read_again(iterator: Iterator[Any], count: int, arrived: Callable[[], None]) -> Iterator[Any]:
    for _ in islice(iterator, count):
        pass
    arrived()
    yield from iterator
