"""What only all ranks together can find out: bandwidth, what they see of each other's files, and their clocks."""

import secrets
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from relay.base import lock
from relay.chain import files
from relay.process.devices import is_gpu, synchronise
from relay.process.ranks import Ranks

SIZES_BYTES = {"cpu": (64 * 2**10, 2**20, 16 * 2**20), "cuda": (64 * 2**10, 2**20, 16 * 2**20, 256 * 2**20)}
REPEATS = 5
SLOW_SECONDS = 0.5  # a size that takes longer is measured once, and one that would take MOST_SECONDS not at all:
MOST_SECONDS = 5.0  # preflight is to be short
SEEN_WITHIN_SECONDS = 10.0  # a network filesystem may show a new file late


def all_reduce(ranks: Ranks, nodes: Sequence[str]) -> list[dict[str, Any]]:
    """Bandwidths of the all-reduce over all ranks, and within the nodes where there are several. Collective.

    `nodes` has each rank's node. For each size: `seconds`, the median over the repeats, of the slowest rank;
    `algorithm_gb_per_second`, 1e9 bytes of the tensor a second; `bus_gb_per_second`, that times 2(n-1)/n, which is
    comparable with a link's speed whatever the number n of ranks (the definitions of NVIDIA's nccl-tests).
    """
    if ranks.world_size == 1:
        return []
    names = list(dict.fromkeys(nodes))
    rows = _measure(ranks, None, "all", ranks.world_size)
    if 1 < len(names) < ranks.world_size:
        members = {name: [rank for rank, node in enumerate(nodes) if node == name] for name in names}
        groups = {name: dist.new_group(members[name], backend=ranks.backend) for name in names}  # by every rank
        own = nodes[ranks.rank]
        rows += _measure(ranks, groups[own], "node", len(members[own]))
    return rows


def _measure(ranks: Ranks, group: dist.ProcessGroup | None, span: str, size: int) -> list[dict[str, Any]]:
    device = torch.device("cpu") if ranks.backend == "gloo" else ranks.device
    kind = "cuda" if is_gpu(device) else "cpu"
    rows: list[dict[str, Any]] = []
    for size_bytes in SIZES_BYTES[kind]:
        if rows and rows[-1]["seconds"] * size_bytes / rows[-1]["bytes"] > MOST_SECONDS:  # the same on all ranks
            break
        tensor = torch.empty(size_bytes // 4, device=device)
        timings: list[float] = []
        right = True
        repeats = REPEATS
        while len(timings) < 1 + repeats:
            tensor.fill_(1)
            ranks.barrier()
            synchronise(device)
            started = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            synchronise(device)
            timings += ranks.largest([time.perf_counter() - started])
            right = right and bool((tensor == size).all())
            if len(timings) == 1 and timings[0] > SLOW_SECONDS:  # the same on all ranks: all agreed on it
                repeats = 1
        seconds = statistics.median(timings[1:])  # the first connects
        speed = size_bytes / seconds / 1e9
        rows.append(
            {
                "span": span,
                "processes": size,
                "bytes": size_bytes,
                "seconds": seconds,
                "algorithm_gb_per_second": speed,
                "bus_gb_per_second": speed * 2 * (size - 1) / size,
                "right": not ranks.largest([float(not right)])[0],
            }
        )
    return rows


def files_seen(ranks: Ranks, folder: Path, *, wait_seconds: float = SEEN_WITHIN_SECONDS) -> list[bool]:
    """For each rank, whether this one sees the file that it writes into the folder now. Collective.

    All must be seen where the folder is shared, and only those of its own node where it is the node's own. A folder
    that cannot be written shows no files.
    """
    token = ranks.gather(secrets.token_hex(8))[0]  # one for this call: an older file proves nothing
    mine = folder / f".relay-seen-{token}-{ranks.rank}"
    with suppress(OSError):
        mine.write_text(token, encoding="utf-8")
    ranks.barrier()
    seen = _seen([folder / f".relay-seen-{token}-{rank}" for rank in range(ranks.world_size)], wait_seconds)
    ranks.barrier()  # not before all have looked
    mine.unlink(missing_ok=True)
    return seen


def _seen(paths: Sequence[Path], wait_seconds: float) -> list[bool]:
    """Which of these files are seen, once all are or the time is over."""
    end = time.monotonic() + wait_seconds
    while not all(seen := [path.is_file() for path in paths]) and time.monotonic() < end:
        time.sleep(0.05)
    return seen


def lock_fault(ranks: Ranks, folder: Path) -> str | None:
    """What keeps rank 0 from locking the folder, or this rank from noticing its lock; None: all works. Collective.

    Some network filesystems have no locks, and some none that other nodes know of.
    """
    place, fault = folder / f".relay-lock-{ranks.gather(secrets.token_hex(8))[0]}", ""
    with ExitStack() as held:
        if ranks.rank == 0:
            try:
                stream, locks = files.exclusive(place, 0)
                held.enter_context(stream)
                fault = "" if locks else "no locks available"
            except OSError as error:
                fault = f"it cannot be locked: {error.strerror}"
        fault = ranks.gather(fault)[0]  # the others look while rank 0 has it
        if not fault:
            _seen([place / files.LOCK], SEEN_WITHIN_SECONDS)
            fault = "" if lock.held(place) else "rank 0 had locked it, and that is not known there"
        ranks.barrier()
    if ranks.rank == 0:
        files.remove(place)
    return fault or None


def clock_ahead_seconds(ranks: Ranks) -> float:
    """How far this rank's clock is ahead of rank 0's: correct to the few milliseconds of a barrier. Collective."""
    ranks.barrier()
    clocks = ranks.gather(time.time())
    return float(clocks[ranks.rank] - clocks[0])
