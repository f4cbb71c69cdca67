"""When to stop early: a signal, the job's end, or a launcher that is gone."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

LEAST_MARGIN_SECONDS = 10.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


@dataclass
class Interruption:
    """Watches for the reasons to stop; the ranks agree on it at a step boundary.

    `deadline` is in Unix seconds: SLURM_JOB_END_TIME, which `allocation` sets where Slurm does not.
    `margin_seconds` covers a save, and what lies between two looks at the clock: it grows with the longest ones seen.
    """

    deadline: float | None = None
    margin_seconds: float = LEAST_MARGIN_SECONDS
    received: list[str] = field(default_factory=list)
    parent: int = field(default_factory=os.getppid)

    @classmethod
    def watch(cls) -> Interruption:
        """Install the handlers; each only notes the signal."""
        end = os.environ.get("SLURM_JOB_END_TIME")
        watching = cls(deadline=float(end) if end else None)
        for number in SIGNALS:
            signal.signal(number, lambda received, _: watching.received.append(signal.Signals(received).name))
        return watching

    def leave_room(self, save_seconds: float, step_seconds: float) -> None:
        """Saves took so long at most, and a step with its evaluation: leave room for two saves and one of these."""
        self.margin_seconds = max(self.margin_seconds, 2 * save_seconds + step_seconds + LEAST_MARGIN_SECONDS)

    @property
    def reason(self) -> str | None:
        """Why this rank has to stop; None while it has not."""
        if self.received:
            return self.received[0]
        if self.deadline is not None and time.time() > self.deadline - self.margin_seconds:
            return "deadline"
        # A killed launcher leaves its processes behind: they must not train beside the next attempt.
        if os.getppid() != self.parent:
            return "the launcher is gone"
        return None
