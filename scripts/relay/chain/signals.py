"""The reasons to stop a training early: a signal, the end of the job's time, or a launcher that has died.

A training that waits for something stops nowhere: its loader, another rank, a disk. A last resort then ends it.
After the training, it ends nothing any more.
"""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from .telling import STOPPED, TORCHRUN, come, go, is_early, leave_note, say

EARLY = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm sends one before the end of a job's time, where `--signal` asks for it
# What stops a training, and what whoever starts processes passes on to them.
SIGNALS = (signal.SIGTERM, *EARLY, signal.SIGINT)
LEAST_MARGIN_SECONDS = 10.0
DEADLINE = "the job's time is nearly over"  # the reason of a stop before the end of the job's time
LAST_SECONDS = 60.0  # from the order to end until the last resort, unless two saves and a step take longer
MOST_SECONDS = 600.0  # as long at most, where a save is under way and no end of the job's time is known
SPARE_SECONDS = 3.0  # between the last resort and the end of the job's time
_LOOK_SECONDS = 0.5


def _torchrun() -> int | None:
    """The torchrun that has started this process. The ranks of a killed one live on: they must not train beside the
    next job. Of other parents nothing follows: a shell may end before the script that it started."""
    return os.getppid() if TORCHRUN in os.environ else None


@dataclass
class Interruption:
    """Watches for a reason to stop. A handler only notes its signal; the ranks agree on it after a step.

    `end_time` is the end of the job's time in Unix seconds, or None. `margin_seconds` is kept free before it, and
    grows with the longest save and step; DEADLINE is then the reason. The process must not outlive its `launcher`;
    None: that is not known. `saved` tells the newest step that is saved, and `saving` whether a save is under way.
    """

    end_time: float | None = None
    margin_seconds: float = LEAST_MARGIN_SECONDS
    received: list[str] = field(default_factory=list)
    launcher: int | None = field(default_factory=_torchrun)
    saved: Callable[[], int] = lambda: 0
    saving: Callable[[], bool] = lambda: False
    ended: bool = False
    # The handlers of others, as of a training before this one. Python's `signal` asks for the text of a handler.
    _before: dict[int, Any] = field(default_factory=dict, repr=False)
    _process: int = 0  # which watches; a fork of it has these handlers, too
    _last: threading.Thread | None = None
    _offset: float = field(default_factory=lambda: time.time() - time.monotonic(), repr=False)

    def watch(self, *, last_resort: bool = True) -> None:
        """Install the handlers. Python allows that in the main thread alone; elsewhere signals stay as they are.

        Without the `last_resort`, whoever has started the process ends it where it waits for too long.
        """
        self.ended, self._process = False, os.getpid()
        come()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if (before := signal.signal(number, self._note)) != self._note:
                    self._before[number] = before
            if last_resort and self._last is None:
                # Python calls a handler between two steps of its main thread; a pipe is written to at once.
                wakeups, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                if (another := signal.set_wakeup_fd(tell, warn_on_full_buffer=False)) != -1:
                    signal.set_wakeup_fd(another)
                os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
                self._last = threading.Thread(target=self._end_in_time, args=[wakeups], name="last resort", daemon=True)
                self._last.start()

    def end(self) -> None:
        """The training has ended: what follows it, such as a test, ends by itself, or by a signal as ever."""
        self.ended = True
        go()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):  # the others only tell that the time is nearly over
                if number in self._before:
                    signal.signal(number, self._before.pop(number))

    def _note(self, number: int, _: FrameType | None) -> None:
        if os.getpid() == self._process:
            self.received.append(signal.Signals(number).name)
        elif number not in EARLY and not _is_data_worker():  # a fork: it ends as if there were no chain
            signal.signal(number, self._before.get(number) or signal.SIG_DFL)
            signal.raise_signal(number)

    def _end_in_time(self, wakeups: int) -> None:
        """In a thread: wait for an order to end, and end this process where it is still there when its time is over."""
        while True:
            while (reason := self.reason or _first_of(wakeups)) is None:
                select.select([wakeups], [], [], _LOOK_SECONDS)
            if not self.received and not self.ended and reason in [number.name for number in SIGNALS]:
                self.received.append(reason)  # a handler that the script has installed since has it: stop all the same
            if self.received:
                go()  # torchrun kills those that do not end, when another rank has failed
            began = time.monotonic()
            self._wait(began, reason)
            if not self.ended:
                break
            time.sleep(_LOOK_SECONDS)
        with suppress(OSError):  # it was closed
            faulthandler.dump_traceback(2, all_threads=True)
        say(
            f"ends now: it was told to end {time.monotonic() - began:.0f} s ago ({reason}), and waits where the lines "
            f"above say; {f'step {self.saved()}' if self.saved() else 'no step'} is saved"
        )
        leave_note(self.saved(), reason, by_signal=bool(self.received))
        for worker in multiprocessing.active_children():  # no data worker outlives it
            worker.kill()
        os._exit(STOPPED)

    def _wait(self, began: float, reason: str) -> None:
        """Wait until the last resort is due, or the training has ended; `began` is when the order to end came.

        The last minute counts from the end of a save. SIGUSR1 and 2 come before the job's end: it uses that time.
        """
        last, most = began + max(LAST_SECONDS, self.margin_seconds), began + MOST_SECONDS
        if self.end_time is not None and (reason in [number.name for number in EARLY] or is_early()):
            last = math.inf
        while not self.ended:
            now = time.monotonic()
            last = max(last, now + LAST_SECONDS) if self.saving() else last
            # The other clock goes on while a node is suspended.
            left = most - now if self.end_time is None else self.end_time - self._now() - SPARE_SECONDS
            if (left := min(last - now, left)) <= 0:
                break
            time.sleep(min(left, _LOOK_SECONDS))

    def _now(self) -> float:
        """Unix seconds. A clock that is set back makes no stop late."""
        return max(time.time(), time.monotonic() + self._offset)

    def leave_room(self, save_seconds: float, step_seconds: float) -> None:
        """Keep enough time free for two saves and one step. Both arguments are the longest so far."""
        self.margin_seconds = max(self.margin_seconds, 2 * save_seconds + step_seconds + LEAST_MARGIN_SECONDS)

    @property
    def reason(self) -> str | None:
        """Why this rank has to stop, or None."""
        if self.received:
            return self.received[0]
        if self.end_time is not None and self._now() > self.end_time - self.margin_seconds:
            return DEADLINE
        if self.launcher is not None and os.getppid() != self.launcher:
            return "the launcher is gone"
        return None


def ordered(received: Sequence[int], status: int) -> int | None:
    """The signal by which a command was told to end that ended with this status, or as a shell tells it; else None.

    `received` are those that its parent has heard. Slurm signals all of a job's processes: the command may have ended
    by it before.
    """
    by = -status if status < 0 else status - 128
    return next((number for number in (*received, by) if number in SIGNALS), None)


def _is_data_worker() -> bool:
    """Whether this process is a worker of torch's DataLoader, which begins, and will ignore signals in a moment."""
    target = getattr(multiprocessing.current_process(), "_target", None)
    return getattr(target, "__module__", None) == "torch.utils.data._utils.worker"


def _first_of(wakeups: int) -> str | None:
    """The first of the signals whose numbers are in a pipe; None where none of them is."""
    with suppress(BlockingIOError):
        numbers = [number for number in os.read(wakeups, 1 << 10) if number in SIGNALS]
        return signal.Signals(numbers[0]).name if numbers else None
    return None
