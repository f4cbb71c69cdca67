"""What a step's time goes to on CPUs: from the clocks of the thread that trains, which Linux keeps.

A thread computes, is ready and waits for a CPU, or sleeps. While it trains a step it sleeps for one reason: it waits
for other processes, for what is being sent, or for a disk. That is communication which no computing hides, whichever
library sends. A profiler would see torch's own operations alone, not Horovod's; and it would slow down small steps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Moment(NamedTuple):
    """A moment, and what the thread had spent by then, in seconds: computing, and ready without a CPU."""

    at: float
    computed: float
    ready: float

    def since(self, before: Moment) -> Moment:
        """The differences."""
        return Moment(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def asleep(self) -> float:
        """Of such differences: the seconds in which the thread slept."""
        return max(0.0, self.at - self.computed - self.ready)


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
    """

    method = "clocks of the training thread"

    def __init__(self, alone: bool) -> None:
        self.alone = alone
        self.parts = dict.fromkeys(("data", "compute", "communication", "optimizer", "no_cpu"), 0.0)
        self._clock: ThreadClock | None = None
        self._fetched: Moment | None = None
        self._optimizer = _Optimizer(self._now)

    def fetched(self, waited: float) -> None:
        """A batch has come, for which the thread that calls this has waited so many seconds."""
        self._clock = self._clock or ThreadClock()
        self.parts["data"] += waited
        self._optimizer.take()
        self._fetched = self._now()

    def stepped(self) -> None:
        """The step with that batch is done."""
        if self._fetched is None:
            return
        step, updating = self._now().since(self._fetched), self._optimizer.take()
        rest = step.since(updating)  # what the optimizer sleeps is its own
        asleep = 0.0 if self.alone else min(rest.asleep, rest.at)
        ready = min(max(0.0, rest.ready), rest.at - asleep)
        self.parts["optimizer"] += updating.at
        self.parts["communication"] += asleep
        self.parts["no_cpu"] += ready
        self.parts["compute"] += rest.at - asleep - ready

    def end(self) -> dict[str, float]:
        """The seconds of each part."""
        self._optimizer.close()
        if self._clock:
            self._clock.close()
        return self.parts

    def _now(self) -> Moment:
        assert self._clock is not None
        return self._clock.now()


class _Optimizer:
    """Notes what the steps of torch's optimizers take: the task's own, and what a framework has made of it."""

    def __init__(self, now: Callable[[], Moment]) -> None:
        self._now, self._depth = now, 0
        self._began, self._spent = Moment(0, 0, 0), Moment(0, 0, 0)
        self._hooks = (
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        )

    def _before(self, *_: Any) -> None:
        if self._depth == 0:
            self._began = self._now()
        self._depth += 1  # a framework's step contains torch's

    def _after(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            spent = self._now().since(self._began)
            self._spent = Moment(*(before + more for before, more in zip(self._spent, spent, strict=True)))

    def take(self) -> Moment:
        """What they took since the last call."""
        taken, self._spent = self._spent, Moment(0, 0, 0)
        return taken

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
