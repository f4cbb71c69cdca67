"""What ranks send to each other, written down, and whether it would get through with NCCL.

NCCL need not buffer: a send may wait until its receive has come ("Point To Point Communication Functions" of
https://docs.nvidia.com/deeplearning/nccl/user-guide). And torch has two kinds of communicators with NCCL
(`ProcessGroupNCCL::pointToPoint`, for groups without a bound device):

- What `batch_isend_irecv` sends goes through the group's own. Its operations progress together. All ranks of the group
  have to come to its first use, because it is made there.
- A send or a receive alone goes through one of these two ranks alone. So it never meets one out of a batch.

gloo has neither rule, so that a training passes there which would hang on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Operation:
    """A tensor that is sent to, or received from, a rank."""

    sends: bool
    peer: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Batch:
    """Operations that a rank hands over at once: several `together`, or one alone. `group` are the group's ranks."""

    group: tuple[int, ...]
    together: bool
    operations: list[Operation] = field(default_factory=list)


@contextmanager
def written_down() -> Iterator[list[Batch]]:
    """This process's batches, in their order, while it communicates as ever."""
    log: list[Batch] = []
    open_batches: list[Batch] = []
    real = dist.batch_isend_irecv

    def alone(function: Any, sends: bool) -> Any:
        def noted(tensor: torch.Tensor, *given: Any, **named: Any) -> Any:
            group = named.get("group") or dist.group.WORLD
            members = tuple(dist.get_process_group_ranks(group))
            peer = named.get("group_dst" if sends else "group_src")
            peer = (given[0] if given else named.get("dst" if sends else "src")) if peer is None else members[peer]
            batch = open_batches[-1] if open_batches else Batch(members, together=False)
            batch.operations.append(Operation(sends, peer, tuple(tensor.shape), tensor.dtype))
            if not open_batches:
                log.append(batch)
            return function(tensor, *given, **named)

        return noted

    def together(operations: list[dist.P2POp]) -> Any:
        open_batches.append(Batch(tuple(dist.get_process_group_ranks(operations[0].group)), together=True))
        log.append(open_batches[-1])
        try:
            return real(operations)
        finally:
            open_batches.pop()

    # torch compares these functions with the module's, so that they are replaced wherever it looks for them.
    isend, irecv = alone(dist.isend, True), alone(dist.irecv, False)
    with mock.patch.multiple(dist.distributed_c10d, isend=isend, irecv=irecv), \
            mock.patch.multiple(dist, isend=isend, irecv=irecv, batch_isend_irecv=together):  # fmt: skip
        yield log


def stuck(logs: Sequence[Sequence[Batch]]) -> str | None:
    """Where the ranks would wait for each other for ever; None where all of it gets through.

    Each rank is taken to end a batch before it begins the next one. NCCL demands less: what gets through here does
    so there, whatever runs at the same time.
    """
    place, left = [0] * len(logs), [_first(log, 0) for log in logs]
    made: set[tuple[int, ...]] = set()
    moved = True
    while moved:
        moved = False
        for rank, log in enumerate(logs):
            if place[rank] == len(log):
                continue
            batch = log[place[rank]]
            if batch.together and batch.group not in made:
                if not all(_asks_for(logs[other], place[other], batch.group) for other in batch.group):
                    continue
                made.add(batch.group)
            for operation in _heads(left[rank], sends=True):
                if _received(logs, place, left, made, rank, batch, operation):
                    left[rank].remove(operation)
                    moved = True
        for rank, log in enumerate(logs):
            while place[rank] < len(log) and not left[rank]:
                place[rank] += 1
                left[rank] = _first(log, place[rank])
                moved = True
    waiting = [f"rank {rank}: {log[place[rank]]}" for rank, log in enumerate(logs) if place[rank] < len(log)]
    return "; ".join(waiting) or None


def _first(log: Sequence[Batch], place: int) -> list[Operation]:
    """What a rank still has to do of the batch at this place."""
    return list(log[place].operations) if place < len(log) else []


def _asks_for(log: Sequence[Batch], place: int, group: tuple[int, ...]) -> bool:
    """Whether a rank has come to its first batch in the group's communicator."""
    return place < len(log) and log[place].together and log[place].group == group


def _heads(left: Sequence[Operation], *, sends: bool) -> list[Operation]:
    """The next operation for each peer: those with the same peer, in one direction, keep their order."""
    return list({each.peer: each for each in reversed(left) if each.sends is sends}.values())


def _received(
    logs: Sequence[Sequence[Batch]], place: Sequence[int], left: Sequence[list[Operation]],
    made: set[tuple[int, ...]], rank: int, batch: Batch, operation: Operation,
) -> bool:  # fmt: skip
    """Whether the peer receives this right now, on the same communicator; then it has no more to do for it."""
    peer = operation.peer
    if place[peer] == len(logs[peer]):
        return False
    other = logs[peer][place[peer]]
    if (other.group, other.together) != (batch.group, batch.together) or (other.together and other.group not in made):
        return False
    wanted = Operation(False, rank, operation.shape, operation.dtype)
    if wanted not in _heads(left[peer], sends=False):
        return False
    left[peer].remove(wanted)
    return True
