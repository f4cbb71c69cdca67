"""A split kept in memory as the model takes it: its samples are transformed once, and not in every step."""

from __future__ import annotations

import os

import torch

from relay.process import system
from relay.process.devices import is_gpu
from relay.process.generators import drawn_from
from relay.task import batches
from relay.task.batches import Batch
from relay.task.split import Split, spread

MOST_BYTES = 2**30  # of a process's samples
PIECE = 1000  # samples that are transformed together


def transformed(split: Split, stored: Batch, device: torch.device) -> Batch | None:
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
            return whole if all(_same(ready(each), taken(whole, each.to(device))) for each in some) else None
    except Exception:  # the transform wants batches of one size; if it is a mistake, the first step tells it
        return None


def taken(whole: Batch, positions: torch.Tensor) -> Batch:
    """The samples at these positions of what `transformed` gave, each part in the order in memory that it has."""
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


def _same(one: Batch, other: Batch) -> bool:
    return all(map(torch.equal, batches.leaves(one), batches.leaves(other)))
