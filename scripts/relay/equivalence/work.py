"""What each rank really computes: floating-point operations of matrix products and convolutions, step by step.

Samples' ids show what reaches the loss. They do not show who computed it: each rank could compute the whole batch, or
one rank all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from relay.base.grouped import gathered
from relay.strategies.base import Replica
from relay.task.modes import OperationMode, everywhere, flops

# A rank that computes a slice by itself does as much as one process does for the slice. In the backward pass it may
# compute layers again (activation checkpointing), which makes a third more of the whole.
MOST_FORWARD, MOST_TOTAL, LEAST_TOTAL = 1.25, 1.5, 0.75
# A rank with so much of the work leaves nothing to the others of its replica. A stage of a pipeline may have nearly
# all: stages are cut by time, and one layer of a network can cost more than all others. Behind a small LSTM, the matrix
# that gives two classes has 0.04 % of the operations.
ALL_BUT_NOTHING = 0.999
# What a rank may hold of the optimizer's state where another one keeps it for all.
NO_STATE = 0.05


@dataclass
class Work:
    """Floating-point operations since the start: all, and those outside backward passes."""

    total: int = 0
    forward: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, operations: int) -> None:
        """Count operations of this thread."""
        backward = torch._C._current_graph_task_id() != -1
        with self.lock:
            self.total += operations
            self.forward += 0 if backward else operations

    def taken(self) -> tuple[int, int]:
        """All operations, and those outside backward passes, since the last call."""
        with self.lock:
            counted, self.total, self.forward = (self.total, self.forward), 0, 0
        return counted

    def counting(self) -> AbstractContextManager[None]:
        """Count what this thread computes within, and what threads compute that are started within."""
        return everywhere(lambda: _Counting(self))


class _Counting(OperationMode):
    """Sees every operation of a thread, and of the backward passes that it starts; adds its size to a `Work`."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def called(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation, whose size is counted."""
        result = func(*args, **kwargs)
        finds_shapes = any(issubclass(kind, FakeTensor) for kind in types)  # as DTensor does with these
        if not finds_shapes and (operations := flops(func, args, kwargs, result)):
            self.work.add(operations)
        return result


@dataclass(frozen=True)
class Shares:
    """A rank's work in one step, as a part of what one process does for the whole batch."""

    total: float
    forward: float


def undivided(
    replicas: Sequence[Replica],
    steps: Sequence[Sequence[Shares]],
    optimizer_shares: Sequence[float],
    slice_shares: Sequence[Sequence[float]] = (),
    *,
    uneven: bool = False,
    staged: bool = False,
) -> tuple[list[str], list[str]]:
    """Problems and notes: ranks that compute more, or less, than their part.

    `replicas` and `optimizer_shares` (of the whole optimizer's state, what a rank holds) are by rank; `steps` has each
    step's shares by rank, and `slice_shares` what each replica's slice is of its step: texts that are padded to the
    longest of their slice do not all cost the same. A rank alone in its replica computes one slice; where the work is
    `uneven`, because samples choose which rank computes them (mixtures of experts), only the sum over all ranks is
    bounded. Ranks that share a replica compute a slice together; each does something, and none does all. Where they are
    `staged`, one may do all that is counted: a stage of embeddings or norms has no matrix products. Then each has to
    hold a part of the model.
    """
    keepers = _keepers(steps, optimizer_shares)
    groups = gathered((replica.index, rank) for rank, replica in enumerate(replicas) if rank not in keepers)
    notes = [f"rank {rank} computes no samples: it keeps the optimizer's state for the others" for rank in keepers]
    for step, shares in enumerate(steps):
        for index, group in groups.items():
            slice_share = slice_shares[step][index] if slice_shares else 1 / replicas[0].count
            if len(group) > 1:
                in_stages = staged and all(optimizer_shares[rank] > 0 for rank in group)
                problem = _too_much(group, shares, slice_share) or (
                    None if in_stages else _unshared(group, shares, slice_share)
                )
            elif uneven:
                problem = _together(shares)
            else:
                problem = _alone(group[0], shares, slice_share)
            if problem:
                return [f"division of work: step {step}: {problem}"], notes
    return [], notes


def _keepers(steps: Sequence[Sequence[Shares]], optimizer_shares: Sequence[float]) -> list[int]:
    """Ranks that never compute, and hold the optimizer's state for all that do: a parameter server's."""
    idle = [rank for rank in range(len(optimizer_shares)) if all(shares[rank].total == 0 for shares in steps)]
    others = [share for rank, share in enumerate(optimizer_shares) if rank not in idle]
    if not others or max(others) > NO_STATE:
        return []
    return [rank for rank in idle if optimizer_shares[rank] > NO_STATE]


def _alone(rank: int, shares: Sequence[Shares], slice_share: float) -> str | None:
    """What is wrong with the work of a rank that computes its replica's slice by itself."""
    mine = shares[rank]
    if mine.forward > MOST_FORWARD * slice_share or mine.total > MOST_TOTAL * slice_share:
        return (
            f"rank {rank} computes {_percent(mine)} of what one process computes for the whole batch; its slice is "
            f"{slice_share:.1%} of it"
        )
    if mine.total < LEAST_TOTAL * slice_share:
        return (
            f"rank {rank} computes only {_percent(mine)} of what one process computes for the whole batch; its slice "
            f"is {slice_share:.1%} of it"
        )
    return None


def _together(shares: Sequence[Shares]) -> str | None:
    """What is wrong with the work of all ranks, which may divide it unevenly."""
    idle = [rank for rank, each in enumerate(shares) if each.total == 0]
    everything = Shares(sum(each.total for each in shares), sum(each.forward for each in shares))
    if idle:
        return f"rank {idle[0]} computes nothing"
    if everything.forward > MOST_FORWARD or everything.total > MOST_TOTAL:
        return f"all ranks together compute {_percent(everything)} of what one process computes for the whole batch"
    return None


def _too_much(group: Sequence[int], shares: Sequence[Shares], slice_share: float) -> str | None:
    """A rank that computes more than its replica's slice."""
    for rank in group:
        if shares[rank].total > MOST_TOTAL * slice_share:
            return (
                f"rank {rank} computes {_percent(shares[rank])} of what one process computes for the whole batch; "
                f"ranks {_listed(group)} should share {slice_share:.1%} of it"
            )
    return None


def _unshared(group: Sequence[int], shares: Sequence[Shares], slice_share: float) -> str | None:
    """A rank that does nothing of its replica's work, or all of it."""
    for rank in group:
        if shares[rank].total == 0:
            return f"rank {rank} computes nothing; ranks {_listed(group)} should share a replica's work"
    for kind in ("forward", "total"):
        parts = [getattr(shares[rank], kind) for rank in group]
        if max(parts) >= ALL_BUT_NOTHING * slice_share and (
            min(parts) >= ALL_BUT_NOTHING * slice_share or max(parts) >= ALL_BUT_NOTHING * sum(parts)
        ):
            rank = group[parts.index(max(parts))]
            what = "the whole forward pass" if kind == "forward" else "everything"
            return f"rank {rank} computes {what} of its replica; ranks {_listed(group)} should share it"
    return None


def _percent(shares: Shares) -> str:
    return f"{shares.total:.1%} (forward {shares.forward:.1%})"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
