"""BatchNorm's statistics of every replica: a run saves each rank's own, and evaluates each slice by its replica's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from relay.equivalence.figures import distance, share

Statistics = dict[str, torch.Tensor]


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


def copies(statistics: Sequence[Statistics]) -> list[Statistics]:
    """A copy of each replica's."""
    return [{name: buffer.clone() for name, buffer in own.items()} for own in statistics]


def from_the_firsts(
    model: nn.Module, before: Sequence[Statistics], after: Sequence[Statistics], parts: Sequence[int]
) -> list[Statistics]:
    """What a step would have made of them, had every replica begun it with the first one's, as under DDP.

    `before` and `after` are of the step in which each replica began with its own, and worked through so many `parts`.
    """
    if not after:
        return []
    momentum = {name: module.momentum for name, module in model.named_modules() if hasattr(module, "momentum")}
    moved = []
    for own, then, count in zip(before, after, parts, strict=True):
        kept = {name: (1 - (momentum.get(name.rpartition(".")[0]) or 0.0)) ** count for name in own}
        shifted = {name: then[name] + kept[name] * (before[0][name] - own[name]) for name in _floating(own)}
        moved.append({**then, **shifted})
    return moved


def difference(recorded: Statistics, candidates: Sequence[Statistics], before: Statistics) -> float:
    """How far a replica's statistics are from the nearest candidate, relative to how far that has moved; L2 norms."""
    figures = []
    for candidate in candidates:
        off, moved = (distance([(one[n], candidate[n]) for n in _floating(candidate)]) for one in (recorded, before))
        figures.append(share(off, moved))
    return min(figures)


def _floating(own: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name, buffer in own.items() if buffer.is_floating_point()]
