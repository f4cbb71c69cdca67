"""A script's loader: the place in its data from which the next job goes on, and its workers.

An epoch's order is drawn when its loader is asked for an iterator. So the generators are kept as they were then, beside
how they are now. To go on, the first are restored, the order is drawn again, the batches that were trained are passed
over, and then the generators are restored as they are now.

Workers are shielded from a job's signals, bounded in their silence, and ended.
"""

from __future__ import annotations

import atexit
import copy
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from .generators import Own, generators, restore
from .signals import SIGNALS
from .telling import ChainError

FEEDING = (DataLoader, Sampler, Dataset)
HOLDING = ("sampler", "batch_sampler", "dataset")  # also where they are properties
MOST_HELD = 100  # of a list, such as the data sets that ConcatDataset joins; a data set's samples are no such list
LONGEST_FOLDER = 107 - len("/pymp-12345678/listener-12345678")  # sockets' names have 107 bytes at most
SILENT_SECONDS = 600  # without a batch, where the user gave the loader no `timeout`
_LET_GO_SECONDS = 1.0


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
    # Of an epoch after the first, they have in the script without a cut, though this job has none yet.
    persistent = isinstance(loader, DataLoader) and loader.persistent_workers
    stayed = persistent and (place.epoch > 0 or getattr(loader, "_iterator", None) is not None)
    for holder in within(loader):  # whatever draws its order from the epoch, such as a DistributedSampler
        if callable(set_epoch := getattr(holder, "set_epoch", None)):
            set_epoch(place.epoch)
    if not place.batch:
        place.order = generators(own)
        return _begun(loader, stayed=stayed)
    now = generators(own)
    restore(place.order, own)

    # With workers, the sampler had been asked for batches ahead: where it draws from its own, it goes on by itself.
    ahead = isinstance(loader, DataLoader) and loader.num_workers > 0

    def arrived() -> None:
        restore(now, () if ahead else own)

    if not reread and type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset):
        return _begun(_passing(loader, place.batch, arrived), stayed=stayed)
    return _read_again(_begun(loader, stayed=stayed), place.batch, arrived)


def _begun(loader: Any, *, stayed: bool) -> Iterator[Any]:
    """The loader's iterator. For workers that `stayed`, torch draws an order alone; so it does here for their likes.

    For new ones it also draws a number, and asks for an order twice. So a chain draws what the script draws that has
    neither a cut nor `relay.chain`.
    """
    return _as_if_they_stayed(loader) if stayed else iter(loader)


def _as_if_they_stayed(loader: DataLoader[Any]) -> Iterator[Any]:
    own, name = vars(loader), _asked(loader)
    before = {each: own[each] for each in ("generator", name) if each in own}
    own["generator"] = torch.Generator().manual_seed(torch.initial_seed())
    if name in own:
        own[name] = _Lazily(own[name])
    try:
        iterator = iter(loader)
        first = [*islice(iterator, 1)]  # a loader of another class may begin here
    finally:
        own |= before
    yield from first
    yield from iterator


@dataclass
class _Lazily:
    """A sampler that draws nothing before it is asked for its first index."""

    sampler: Any

    def __iter__(self) -> Iterator[Any]:
        yield from self.sampler

    def __len__(self) -> int:
        return len(self.sampler)


def own_generators(loader: Any) -> list[Own]:
    """The generators that the user gave to a loader, or to what it holds, each once."""
    holders = within(loader)
    given = [each for holder in holders if type(each := getattr(holder, "generator", None)) is torch.Generator]
    # Those come first, as in checkpoints of before.
    given += [each for holder in holders for each in getattr(holder, "__dict__", {}).values() if Own.holds(each)]
    return [Own(each) for each in {id(each): each for each in given}.values()]


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
    name, passing = _asked(loader), copy.copy(loader)
    # DataLoader forbids to assign it, because an iterator in use would not see it; this one has none yet.
    vars(passing)[name] = _Passing(getattr(loader, name), count, arrived)
    # Workers that stayed, as where the script has looked at a batch, would pass over nothing.
    vars(passing)["_iterator"] = None
    return passing


def _asked(loader: DataLoader[Any]) -> str:
    """The name of the sampler that the loader asks for indices."""
    return "sampler" if loader.batch_sampler is None else "batch_sampler"


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


# The workers


def prepare(loader: Any) -> None:
    """Shield the workers of a loader, and of those within, from a job's signals; bound the wait for a batch.

    Raises ChainError where they could not make their sockets: the training would wait for ever.
    """
    folder = tempfile.gettempdir()
    for each in within(loader):
        if not isinstance(each, DataLoader) or not each.num_workers:
            continue
        if len(os.fsencode(folder)) > LONGEST_FOLDER:
            raise ChainError(
                f"TMPDIR={folder}: {len(os.fsencode(folder))} characters are too many for data workers' sockets; "
                f"allowed: at most {LONGEST_FOLDER}, such as /tmp"
            )
        each.timeout = each.timeout or SILENT_SECONDS
        if not isinstance(each.worker_init_fn, _Shielded):
            each.worker_init_fn = _Shielded(each.worker_init_fn)
            atexit.unregister(_let_go)
            atexit.register(_let_go)


def heard(batches: Iterable[Any]) -> Iterator[Any]:
    """The same batches. Raises ChainError in place of torch's error where the workers say nothing for too long."""
    try:
        yield from batches
    except RuntimeError as error:
        if "DataLoader timed out" not in str(error):
            raise
        raise ChainError(
            f"{error}: the data workers say nothing; what they printed is above. Where a batch may take longer, give "
            "the loader timeout=SECONDS"
        ) from None


@dataclass
class _Shielded:
    """What a worker begins with: what reaches every process of a job ends none, for the last step still needs it."""

    then: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if self.then:
            self.then(worker)


def _let_go() -> None:
    """At the end: kill workers that are stuck. multiprocessing would wait for ever, as they ignore its SIGTERM."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's own handler makes an error of a worker's death
    left = [each for each in multiprocessing.active_children() if each.daemon]
    for each in left:
        each.terminate()
    for each in left:
        each.join(_LET_GO_SECONDS)
        each.kill()
