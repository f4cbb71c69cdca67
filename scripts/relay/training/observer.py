"""Observes the last steps of a run's first job, to tell what a step's time goes to.

They are steps of the run as all others, and compute the same: clocks are read, nothing else is done. They come last
because a profiler may slow down a process for good once it has run; so nothing that is timed comes after it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

from relay.process.devices import is_gpu
from relay.process.ranks import Ranks
from relay.run_folder.step_split import FILE, StepSplit
from relay.spec.setting import Length
from relay.strategies.base import Strategy
from relay.training.observed_cpu import OnCpu, ThreadClock
from relay.training.observed_gpu import OnGpu
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
        return self._observed.beside() if isinstance(self._observed, OnGpu) else nullcontext()

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
            told = self.ranks.gather({part: seconds / steps for part, seconds in _ended(seen).items()})
            if self.ranks.rank == 0 and all(told):
                StepSplit(self.attempt, self.first, self.last, seen.method, told).write(self.work)


def _ended(seen: OnCpu | OnGpu) -> dict[str, float]:
    try:
        return seen.end()
    except Exception:  # of a profiler: the run does not depend on it
        traceback.print_exc()
        return {}
