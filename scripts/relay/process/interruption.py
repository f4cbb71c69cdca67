"""The reasons to stop a run early: a signal, the end of the job's time, or a launcher that has died."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

from relay.base.lifeline import launcher
from relay.chain.signals import SIGNALS

LEAST_MARGIN_SECONDS = 10.0


@dataclass
class Interruption:
    """Watches for a reason to stop. The ranks agree on it at the end of a step.

    `deadline` is SLURM_JOB_END_TIME in Unix seconds; `relay.slurm.allocation` sets it where Slurm does not.
    `margin_seconds` is the time to keep free before the deadline. It grows with the longest save and step measured.
    """

    deadline: float | None = None
    margin_seconds: float = LEAST_MARGIN_SECONDS
    received: list[str] = field(default_factory=list)
    parent: int = field(default_factory=launcher)

    @classmethod
    def watch(cls) -> Interruption:
        """Install the handlers. A handler only records the signal."""
        end = os.environ.get("SLURM_JOB_END_TIME")
        watching = cls(deadline=float(end) if end else None)
        for number in SIGNALS:
            signal.signal(number, lambda received, _: watching.received.append(signal.Signals(received).name))
        return watching

    def leave_room(self, save_seconds: float, step_seconds: float) -> None:
        """Keep enough time free for two saves and one step with its evaluation. Both arguments are longest times."""
        self.margin_seconds = max(self.margin_seconds, 2 * save_seconds + step_seconds + LEAST_MARGIN_SECONDS)

    @property
    def reason(self) -> str | None:
        """Why this rank has to stop, or None."""
        if self.received:
            return self.received[0]
        if self.deadline is not None and time.time() > self.deadline - self.margin_seconds:
            return "deadline"
        # The processes of a killed launcher live on. They must not train while the next attempt does.
        if os.getppid() != self.parent:
            return "the launcher is gone"
        return None
