"""The reasons to stop a training early: a signal, the end of the job's time, or a launcher that has died."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
LEAST_MARGIN_SECONDS = 10.0
NEARLY_OVER = "the job's time is nearly over"  # the reason of a stop in time


@dataclass
class Interruption:
    """Watches for a reason to stop. A handler only notes its signal; the ranks agree on it after a step.

    `end_time` is the end of the job's time in Unix seconds, or None. `margin_seconds` is kept free before it, and
    grows with the longest save and step.
    """

    end_time: float | None = None
    margin_seconds: float = LEAST_MARGIN_SECONDS
    received: list[str] = field(default_factory=list)
    _parent: int = field(default_factory=os.getppid)

    def watch(self) -> None:
        """Install the handlers. Python allows that in the main thread alone; elsewhere signals stay as they are."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received.append(signal.Signals(number).name)

    def leave_room(self, save_seconds: float, step_seconds: float) -> None:
        """Keep enough time free for two saves and one step. Both arguments are the longest so far."""
        self.margin_seconds = max(self.margin_seconds, 2 * save_seconds + step_seconds + LEAST_MARGIN_SECONDS)

    @property
    def reason(self) -> str | None:
        """Why this rank has to stop, or None."""
        if self.received:
            return self.received[0]
        if self.end_time is not None and time.time() > self.end_time - self.margin_seconds:
            return NEARLY_OVER
        if self._launcher_is_gone():
            return "the launcher is gone"
        return None

    def _launcher_is_gone(self) -> bool:
        """The ranks of a killed torchrun live on; they must not train beside the next job. Of other parents nothing
        follows: a shell may end before the script that it started."""
        return "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != self._parent
