"""Step times in blocks: long enough to be measured, read without stopping the device."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from relay.process.devices import is_gpu, synchronise

SHORT_PAUSE = 0.1  # of a step
LEAST_BLOCK_SECONDS = 0.01  # a shorter block would measure the clock and the scheduler's jitter

Item = TypeVar("Item")


@dataclass
class Block:
    """Consecutive steps, `first` + 1 to `last`, and the time from the end of the step before to the end of the last.

    `ready`: whether batches of some may have been made ready in a pause, so that it tells no steady state.
    """

    first: int
    last: int
    seconds: float
    data_wait_seconds: float
    ready: bool = False

    def row(self) -> list[float]:
        """As it is recorded; with a fifth figure where batches may have been ready."""
        figures = [self.first, self.last, round(self.seconds, 7), round(self.data_wait_seconds, 7)]
        return [*figures, 1] if self.ready else figures


class Stopwatch:
    """Times training steps; what happens in pauses (evaluation, saving) is left out.

    On GPUs the block's ends are events in the first one's stream, read only when the blocks are taken. A block ends
    with the `warmup` steps, and with the batches that data workers may have made `ready` in a pause: so many at most.
    """

    def __init__(self, devices: Sequence[torch.device], step: int, warmup: int = 0, ready: int = 0) -> None:
        self.devices, self.device, self.step, self.waited = devices, devices[0], step, 0.0
        self._warm, self._ready = step + warmup, ready
        self._paused: dict[str, float] = {}
        self._step_seconds = 0.0  # in the last block
        self._closed: list[tuple[Block, torch.cuda.Event | None, torch.cuda.Event | None]] = []
        self.resume()

    def resume(self, paused_seconds: float = math.inf) -> None:
        """Start timing here (again). In a pause much shorter than a step, no batch was made ready."""
        self._first, self._waited_before = self.step, self.waited
        if paused_seconds > SHORT_PAUSE * self._step_seconds:
            self._steady = self.step + self._ready
        self._event, self._started = self._mark(), time.perf_counter()

    def _mark(self) -> torch.cuda.Event | None:
        if not is_gpu(self.device):
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def tick(self) -> None:
        """A step has ended (on a GPU: is queued). Closes the block once it is long enough."""
        self.step += 1
        ends = self.step in (self._warm, self._steady)
        if ends or time.perf_counter() - self._started >= LEAST_BLOCK_SECONDS:
            self._close()

    def _close(self) -> None:
        event, now = self._mark(), time.perf_counter()
        ready = self._first < self._steady
        block = Block(self._first, self.step, now - self._started, self.waited - self._waited_before, ready)
        self._closed.append((block, self._event, event))
        self._step_seconds = block.seconds / (block.last - block.first)
        self._first, self._waited_before, self._event, self._started = self.step, self.waited, event, now

    def pause(self) -> None:
        """Close the block that is open: what follows does not count until `resume`."""
        for device in self.devices[1:]:  # the first one's event waits for no other GPU
            synchronise(device)
        if self.step > self._first:
            self._close()

    @contextmanager
    def paused(self, activity: str) -> Iterator[None]:
        """What is done within does not count. Its seconds are kept under the name of what is done."""
        self.pause()
        synchronise(self.device)  # what is still queued belongs to the block, whose last event comes after it
        began = time.perf_counter()
        yield
        for device in self.devices:  # what was queued within belongs to the pause
            synchronise(device)
        seconds = time.perf_counter() - began
        self._paused[activity] = self._paused.get(activity, 0.0) + seconds
        self.resume(seconds)

    def take_paused(self) -> dict[str, float]:
        """The seconds of the pauses that ended since the last call, by what was done in them."""
        taken, self._paused = self._paused, {}
        return {what: round(seconds, 6) for what, seconds in taken.items()}

    def take(self) -> list[Block]:
        """The blocks closed since the last call; waits for the device's events."""
        taken = []
        for block, before, after in self._closed:
            if before is not None and after is not None:
                after.synchronize()
                block.seconds = before.elapsed_time(after) / 1000
            taken.append(block)
        self._closed = []
        return taken

    def waiting(self, batches: Iterator[Item]) -> Iterator[Item]:
        """The same batches; the time spent in waiting for them is noted."""
        while True:
            started = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.waited += time.perf_counter() - started
            yield batch
