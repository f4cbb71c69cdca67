"""What a step's time goes to on CPUs: from the clocks of the thread that trains, which Linux keeps.

A thread computes, is ready and waits for a CPU, or sleeps. While it trains a step it sleeps for one reason: it waits
for other processes, for what is being sent, or for a disk. That is communication which no computing hides, whichever
library sends. Where a library waits without sleeping, its strategy names the function (`busy_waits`). A profiler would
see torch's own operations alone, not Horovod's; and it would slow down small steps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Moment(NamedTuple):
    """A moment, and what the thread had spent by then, in seconds: computing, and ready without a CPU."""

    at: float
    computed: float
    ready: float

    def since(self, before: Moment) -> Moment:
        """The differences."""
        return Moment(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, more: Moment) -> Moment:
        """The sums."""
        return Moment(*(one + other for one, other in zip(self, more, strict=True)))

    @property
    def asleep(self) -> float:
        """Of such differences: the seconds in which the thread slept."""
        return max(0.0, self.at - self.computed - self.ready)


NOTHING = Moment(0, 0, 0)


class ThreadClock:
    """The clocks of the thread that makes it; any thread of the process may read them."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._delays = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def now(self) -> Moment:
        """This moment."""
        ready = int(os.pread(self._delays, 100, 0).split()[1]) / 1e9
        return Moment(time.perf_counter(), time.clock_gettime(self._clock), ready)

    def close(self) -> None:
        os.close(self._delays)

    @staticmethod
    def is_there() -> bool:
        """Whether this kernel keeps them."""
        return Path("/proc/self/schedstat").exists() and hasattr(time, "pthread_getcpuclockid")


class OnCpu:
    """Observes steps that compute on CPUs. `fetched` and `stepped` are called in each of them.

    A process that trains alone waits for nobody: there, sleeping (in the pauses of OpenMP's threads) is computing.
    `busy_waits` are functions, each as its owner and its name, in which the thread waits without sleeping.
    """

    method = "clocks of the training thread"
    beside = nullcontext  # what comes between two steps is in neither

    def __init__(self, alone: bool, busy_waits: Sequence[tuple[Any, str]] = ()) -> None:
        self.alone = alone
        self.parts = dict.fromkeys(("data", "compute", "communication", "optimizer", "no_cpu"), 0.0)
        self._clock: ThreadClock | None = None
        self._fetched: Moment | None = None
        # The steps of torch's optimizers: the task's own, and what a framework has made of it.
        self._updating, self._waiting = _Spent(self._now), _Spent(self._now)
        self._hooks = [
            register_optimizer_step_pre_hook(self._updating.begin).remove,
            register_optimizer_step_post_hook(self._updating.end).remove,
        ]
        for owner, name in busy_waits:
            patch = mock.patch.object(owner, name, self._waiting.counted()(getattr(owner, name)))
            patch.start()
            self._hooks.append(patch.stop)

    def fetched(self, waited: float) -> None:
        """A batch has come, for which the thread that calls this has waited so many seconds."""
        self._clock = self._clock or ThreadClock()
        self.parts["data"] += waited
        self._updating.take()
        self._waiting.take()
        self._fetched = self._now()

    def stepped(self) -> None:
        """The step with that batch is done."""
        if self._fetched is None:
            return
        step, updating, waiting = self._now().since(self._fetched), self._updating.take(), self._waiting.take()
        rest = step.since(updating).since(waiting)  # what the optimizer sleeps is its own
        asleep = 0.0 if self.alone else min(rest.asleep, rest.at)
        ready = min(max(0.0, rest.ready), rest.at - asleep)
        self.parts["optimizer"] += updating.at
        self.parts["communication"] += asleep + waiting.at
        self.parts["no_cpu"] += ready
        self.parts["compute"] += rest.at - asleep - ready

    def end(self) -> dict[str, float]:
        """The seconds of each part."""
        for remove in self._hooks:
            remove()
        if self._clock:
            self._clock.close()
        return self.parts

    def _now(self) -> Moment:
        return self._clock.now() if self._clock else NOTHING  # before the first batch: taken, and not counted


class _Spent:
    """What the thread spends within some functions; of one that is called within another, once."""

    def __init__(self, now: Callable[[], Moment]) -> None:
        self._now, self._depth = now, 0
        self._began, self._spent = NOTHING, NOTHING

    def begin(self, *_: Any) -> None:
        """Such a function begins."""
        if self._depth == 0:
            self._began = self._now()
        self._depth += 1  # a framework's step contains torch's

    def end(self, *_: Any) -> None:
        """It has ended."""
        self._depth -= 1
        if self._depth == 0 and self._began is not NOTHING:  # else it began before the first batch
            self._spent = self._spent.plus(self._now().since(self._began))

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What is done while this lasts counts. Also a decorator."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def take(self) -> Moment:
        """What was spent since the last call."""
        taken, self._spent = self._spent, NOTHING
        return taken
