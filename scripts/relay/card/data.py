"""A task's data, looked at: a batch of a few samples, their shapes, and whether they are the same when read again."""

import copy
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from relay.card.draft import Draft
from relay.chain.generators import generators
from relay.spec.tasks import LOOKED_AT, Leaf
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.places import calling, mistake, of_two_devices, place
from relay.task.split import Chosen, Shapes, Split, shapes, spread

SAMPLES = 8  # of a batch, spread over the set: it can be divided into uneven parts, and has targets of several kinds
EPOCHS = 8  # in which samples are compared, to see whether they are random
MIXES = "the samples that {}() makes depend on the others of their batch, and each process has its own part of it"
SECONDS = 1.0  # for which further samples are read


def see(bound: BoundTask, draft: Draft) -> tuple[Batch, tuple[int, int]]:
    """A batch of up to `SAMPLES` training samples as the model gets them, and the number of samples of both splits.

    Raises UserError for data that cannot be trained on.
    """
    kind = type(bound.own)
    with calling(kind, "datasets"):
        train, test = bound.split("train"), bound.split("test")
    positions = spread(len(train), SAMPLES)
    alike = [_shapes_of_all(split, draft) is not None for split in (train, test)]
    joining = "collate_fn" if bound.own.collate_fn else "datasets"
    with calling(kind, joining):
        stored = train.read(Chosen(positions))
        test.read(Chosen(torch.arange(min(2, len(test)))))
    _check_leaves(kind, joining, stored, len(positions))
    draft.card["equal_shapes"] = all(alike) and _rows_alike(train, positions)
    draft.card["random_samples"] = _random(train, positions)
    if draft.card["equal_shapes"]:
        draft.card["sample_bytes"] = sum(leaf.nbytes // len(positions) for leaf in batches.leaves(stored))
    batch = _transformed(bound, train, stored, draft)
    if mixing := _mixing(train, positions, stored, batch):
        draft.warn(mixing, f"{MIXES.format(mixing)}; is that meant?")
        draft.mixes = f"{MIXES.format(mixing)} ({place(kind, mixing)})"
    draft.card["batch"] = tuple(
        Leaf(place=where, shape=tuple(leaf.shape[1:]), dtype=str(leaf.dtype).removeprefix("torch."))
        for where, leaf in batches.placed(batch)
    )
    return batch, (len(train), len(test))


def _check_leaves(kind: Any, method: str, batch: Batch, count: int) -> None:
    """Raise UserError unless a batch has nothing but tensors on the CPU whose first dimension counts the samples."""
    parts, wrong = batches.placed(batch), partial(mistake, kind, method)
    if not any(isinstance(leaf, torch.Tensor) for _, leaf in parts):
        raise wrong(
            f"a batch is {type(batch).__name__} without a tensor; allowed: tensors, or tuples, lists and dicts of them",
        )
    for where, leaf in parts:
        if not isinstance(leaf, torch.Tensor):
            raise wrong(
                f"{where} is {type(leaf).__name__}; allowed: tensors, which can be divided by samples; leave it out"
            )
        if not leaf.dim() or len(leaf) != count:
            raise wrong(
                f"{where} of {count} samples has the shape {list(leaf.shape)}; allowed: {count}, the samples, as the "
                "first dimension; what has another number in each sample, such as boxes, padded, with a mask",
            )
        if leaf.device.type != "cpu":
            raise wrong(
                f"{where} is on the device {leaf.device}; allowed: the CPU, from where each strategy moves it",
            )


def _shapes_of_all(split: Split, draft: Draft) -> Shapes | None:
    """The shapes that all samples have, as far as they are looked at; None where they differ. NaN in one is a warning.

    Raises UserError where they differ, and no `collate_fn` joins them.
    """
    shapes_of_samples, with_nan = [], []
    end = time.monotonic() + SECONDS
    for position in spread(len(split), LOOKED_AT).tolist():
        with calling(type(split.task), "datasets"):
            sample = split.samples(Chosen(torch.tensor([position])))[0]
        shapes_of_samples.append((position, shapes(sample)))
        with_nan += [position] if any(map(_has_nan, tree_leaves(sample))) else []
        if time.monotonic() > end:
            break
    kind = type(split.task)
    if with_nan:
        draft.warn("datasets", f"nan is in {split.numbered(with_nan)}; is that meant?")
    odd = split.odd(shapes_of_samples)
    if odd and split.task.collate_fn is None:
        joins = "allowed: one shape for all, or a method collate_fn(self, samples) that joins them"
        raise mistake(kind, "datasets", f"{odd}; {joins}")
    return None if odd else shapes_of_samples[0][1]


def _has_nan(part: Any) -> bool:
    if isinstance(part, torch.Tensor):
        return part.device.type == "cpu" and part.is_floating_point() and bool(part.isnan().any())
    return np.asarray(part).dtype.kind in "fc" and bool(np.isnan(part).any())


def _rows_alike(split: Split, positions: torch.Tensor) -> bool:
    """Whether a batch's rows are what `collate_fn` makes of each sample alone, so that batches can be cut from one."""
    if split.task.collate_fn is None:
        return True
    with calling(type(split.task), "collate_fn"):
        whole = split.read(Chosen(positions))
        for place in range(len(positions)):
            alone = split.read(Chosen(positions[place : place + 1]))
            if not batches.same(batches.taken(whole, slice(place, place + 1)), alone):
                return False
    return True


def _mixing(split: Split, positions: torch.Tensor, stored: Batch, batch: Batch) -> str:
    """The method that makes other samples of a batch's first half alone; '' for none. `batch` is the transformed one.

    Padding to another length is none.
    """
    half = positions[: max(1, len(positions) // 2)]
    if split.task.collate_fn:
        with calling(type(split.task), "collate_fn"):
            if not _alike(stored, split.read(Chosen(half))):
                return "collate_fn"
    with calling(type(split.task), "transform"):
        return "" if _alike(batch, split.ready(split.read(Chosen(half)), torch.device("cpu"))) else "transform"


def _alike(whole: Batch, alone: Batch) -> bool:
    """Whether what two batches have in common is the same within rounding. Padding may be before or behind it."""
    for one, other in zip(batches.leaves(whole), batches.leaves(alone), strict=True):
        parts = (one[: len(other)], other)
        sizes = [min(each) for each in zip(*(part.shape for part in parts), strict=True)]
        for before in (False, True):
            cuts = [
                tuple(slice(n - size, n) if before else slice(size) for n, size in zip(part.shape, sizes, strict=True))
                for part in parts
            ]
            if close(parts[0][cuts[0]], parts[1][cuts[1]]):
                break
        else:
            return False
    return True


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape are the same within rounding."""
    return torch.allclose(one, other.to(one.dtype), rtol=1e-5, atol=1e-6, equal_nan=True)


def _random(split: Split, positions: torch.Tensor) -> bool:
    """Whether samples differ from epoch to epoch. Raises UserError where one differs within an epoch."""
    if isinstance(split.dataset, TensorDataset):
        return False
    kind = type(split.task)
    with calling(kind, "datasets"):
        first = split.samples(Chosen(positions))
        again = split.samples(Chosen(positions.flip(0)))[::-1]  # in another order, as other processes read
    for position, one, other in zip(positions.tolist(), first, again, strict=True):
        if not batches.same(one, other):
            raise mistake(
                kind,
                "datasets",
                f"sample {position} of the training set differs when it is read again, with the same seed and "
                "epoch; allowed: samples that follow from their number, and from the generators of torch, numpy and "
                "Python, which are seeded for each sample",
            )
    end = time.monotonic() + SECONDS
    for epoch in range(1, EPOCHS):
        if not batches.same(first, split.samples(Chosen(positions, epoch))):
            return True
        if time.monotonic() > end:
            break
    return False


def _transformed(bound: BoundTask, split: Split, stored: Batch, draft: Draft) -> Batch:
    """The batch as the model gets it. Raises UserError for a transform that is no function of the batch alone."""
    kind, count = type(bound.own), batches.count(stored)
    before = generators()
    with calling(kind, "transform"):
        batch = split.ready(copy.deepcopy(stored), torch.device("cpu"))
    if not batches.same(before, generators()):
        raise mistake(
            kind,
            "transform",
            "transform() draws random numbers; allowed: what follows from the batch alone; draw in the dataset's "
            "__getitem__, where each sample has its own seed",
        )
    _check_leaves(kind, "transform", batch, count)
    if problem := _left_behind(bound, stored):
        draft.warn("transform", problem)
    return batch


def _left_behind(bound: BoundTask, stored: Batch) -> str:
    """What of a transformed batch would not be on its device; tried on the meta device, for there may be no GPU."""
    own, meta = copy.copy(bound.own), torch.device("meta")  # a copy: a transform may keep tensors on the device
    try:
        ready = own.transform(batches.moved(stored, meta))
    except Exception as error:  # or it reads values
        joins = "transform() joins a batch with tensors of another device; allowed: tensors on the batch's device"
        return joins if of_two_devices(error) else ""
    places = [place for place, leaf in batches.placed(ready) if isinstance(leaf, torch.Tensor) and leaf.device != meta]
    return f"transform() leaves {places[0]} on the CPU; allowed: tensors on the batch's device" if places else ""
