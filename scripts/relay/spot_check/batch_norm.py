"""BatchNorm's statistics of every replica, as a run's ranks have saved them: each saves its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from relay.equivalence.figures import distance, share
from relay.equivalence.plain import Statistics, floating


def saved(
    state: Path, model: nn.Module, ranks_of: Sequence[Sequence[int]], world_size: int, group: dist.ProcessGroup
) -> list[Statistics]:
    """Each replica's buffers, as its ranks have saved them with a state; `model` has those of the first one."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if not buffers:
        return [{} for _ in ranks_of]
    place = state / "strategy"
    there = dcp.FileSystemReader(place).read_metadata().state_dict_metadata
    statistics_of_replicas = []
    for ranks in ranks_of:
        own_buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        for folder in (f"buffers-{rank}-of-{world_size}" for rank in ranks):
            wanted = {name: own_buffers[name] for name in buffers if f"{folder}.{name}" in there}
            if wanted:
                dcp.load({folder: wanted}, checkpoint_id=place, process_group=group)
        statistics_of_replicas.append(own_buffers)
    return statistics_of_replicas


def unlike(one: Statistics, other: Statistics) -> bool:
    """Whether any buffer differs."""
    return any(not torch.equal(one[name], other[name]) for name in one)


def difference(recorded: Statistics, candidates: Sequence[Statistics], before: Statistics) -> float:
    """How far a replica's statistics are from the nearest candidate, relative to how far that has moved; L2 norms."""
    figures = []
    for candidate in candidates:
        off, moved = (distance([(one[n], candidate[n]) for n in floating(candidate)]) for one in (recorded, before))
        figures.append(share(off, moved))
    return min(figures)
