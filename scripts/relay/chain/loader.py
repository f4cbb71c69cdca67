"""A script's loader: the place in its data from which the next job goes on.

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

from .data_workers import heard
from .generators import Own, generators, restore

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


class Loader:
    """A loader of Lightning's Trainer that counts its batches, and begins where an earlier job stopped.

    An epoch's order is drawn when its first batch is fetched, and not before: what is drawn then is known. With that
    batch, `generators`, the process's, are restored. `before` is called before each batch is fetched. All else is as
    the loader has it. `place` and `own`, the states of its own generators, are those of an earlier job.
    """

    def __init__(self, loader: Any, trainer: Any, place: Place | None, own: list[torch.Tensor]) -> None:
        self.loader, self._trainer = loader, trainer
        self._place, self._goes_on, self._own = place or Place(), place is not None, own
        self.generators: dict[str, Any] | None = None
        self.before: Callable[[], None] = lambda: None

    def reached(self, ahead: int) -> dict[str, Any]:
        """The place, as plain values; `ahead` batches were fetched that are not trained yet."""
        return {**asdict(self._place), "batch": max(0, self._place.batch - ahead)}

    def __iter__(self) -> Iterator[Any]:
        self.before()
        if not self._goes_on:
            self._place = Place(epoch=self._trainer.fit_loop.epoch_progress.current.processed)
        self._goes_on = False
        self._restore()
        place = self._place
        keeps_place = hasattr(self.loader, "load_state_dict")  # the Trainer has it go on by itself
        left = iter(self.loader) if keeps_place else batches(self.loader, place)
        for batch in heard(left):
            place.batch += 1
            yield batch
            self.before()

    def _restore(self) -> None:
        """Whatever was drawn since the job began, the generators go on as they were when it was saved."""
        for each, state in zip(own_generators(self.loader), self._own, strict=False):
            each.set_state(state)
        if self.generators is not None:
            restore(self.generators)
        self._own, self.generators = [], None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # before it is there, as when this is copied
            raise AttributeError(name)
        return getattr(self.loader, name)
