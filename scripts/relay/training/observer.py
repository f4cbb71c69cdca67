"""Observes a run's training: what it uses of its nodes, and what the time of its first job's last steps goes to.

Those are steps of the run as all others, and compute the same: clocks are read, nothing else is done. They come last
because a profiler may slow down a process for good once it has run; so nothing that is timed comes after it.
"""

import os
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TypeVar

from relay.process.devices import is_gpu
from relay.process.gpus import uuids
from relay.process.ranks import Ranks
from relay.process.usage import KNOWN, Usage, watched
from relay.run_folder.samples import samples_path
from relay.spec.recipe import Length
from relay.spec.run import Training
from relay.strategies.base import Strategy
from relay.training.observed_cpu import OnCpu, ThreadClock
from relay.training.observed_gpu import OnGpu
from relay.training.step_split import FILE, StepSplit
from relay.training.timing import Stopwatch

LEAST_STEPS = 5  # fewer would say little
SHARE = 10  # at most one of so many steps of a job that are timed otherwise

Item = TypeVar("Item")


class Observer:
    """The trainer calls `begin` once, `stepped` after each step, and `turn` where it is `due`; its batches come through
    `fed`. Away from the observed steps, all of this returns at once.
    """

    def __init__(self, length: Length, work: Path, attempt: int, ranks: Ranks, strategy: Strategy) -> None:
        self.length, self.work, self.attempt, self.ranks, self.strategy = length, work, attempt, ranks, strategy
        self.first = self.last = -1  # the steps after `first`, up to `last`
        self._observed: OnCpu | OnGpu | None = None

    def begin(self, step: int, last: int) -> None:
        """Choose the steps to observe in a job that goes on from `step` to `last`. Collective."""
        count = min(self.length.observed_steps, (last - step - self.length.warmup_steps) // SHARE)
        possible = is_gpu(self.ranks.device) or ThreadClock.is_there()
        wanted = count >= LEAST_STEPS and possible and not (self.work / FILE).exists()
        if all(self.ranks.gather(wanted)):
            self.first, self.last = last - count, last

    def fed(self, batches: Iterator[Item], stopwatch: Stopwatch) -> Iterator[Item]:
        """The same batches, which the stopwatch waits for; those of observed steps are noted."""
        before = stopwatch.waited
        for batch in stopwatch.waiting(batches):
            if self._observed:
                self._observed.fetched(stopwatch.waited - before)
            before = stopwatch.waited
            yield batch

    def stepped(self) -> None:
        """A step is done."""
        if self._observed:
            self._observed.stepped()

    def beside(self) -> AbstractContextManager[None]:
        """What is done while this lasts belongs to no step: an evaluation, a save."""
        return self._observed.beside() if self._observed else nullcontext()

    def due(self, step: int) -> bool:
        """Whether the observed steps begin or end after this one."""
        return step in (self.first, self.last)

    def turn(self, step: int) -> None:
        """Begin to observe, or end and write what was seen. Collective. What goes wrong in it is told, and no more."""
        if step == self.first:
            if is_gpu(self.ranks.device):
                self._observed = OnGpu(self.ranks.devices)
            else:
                self._observed = OnCpu(self.ranks.world_size == 1, self.strategy.busy_waits())
        elif self._observed:
            seen, self._observed = self._observed, None
            steps = self.last - self.first
            try:
                parts = seen.end()
            except Exception:  # of a profiler: the run does not depend on it
                traceback.print_exc()
                parts = {}
            by_rank = self.ranks.gather({part: seconds / steps for part, seconds in parts.items()})
            if self.ranks.rank == 0 and all(by_rank):
                StepSplit(self.attempt, self.first, self.last, seen.method, by_rank).write(self.work)


def monitored(run: Training, ranks: Ranks, work: Path, attempt: int) -> AbstractContextManager[None]:
    """While this lasts, look at each node every `monitor_seconds`, and record what is seen. Collective."""
    seconds = run.length.monitor_seconds
    if seconds and not KNOWN:
        if ranks.rank == 0:
            print("note: what the run uses of its node is not recorded: this system has no /proc", flush=True)
        seconds = 0.0
    by_rank = ranks.gather((os.getpid(), uuids(ranks.devices))) if seconds else []
    if not seconds or ranks.local_rank != 0:
        return nullcontext()
    processes, gpus = zip(*by_rank[ranks.rank : ranks.rank + run.shape.processes_per_node], strict=True)
    path = samples_path(work, attempt, ranks.rank)
    return watched(path, Usage(processes), [*chain.from_iterable(gpus)], cpus=run.shape.cpus_per_node, seconds=seconds)
