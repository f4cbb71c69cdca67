"""The ranks agree between steps, about once a second: whether to stop, to save, and to write records."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from relay.chain.signals import Interruption
from relay.process.devices import wait_for
from relay.process.ranks import TIMEOUT, Ranks
from relay.spec.setting import Length
from relay.training.checkpoint import Checkpoints

AGREE_SECONDS = 1.0  # how often the ranks agree
FIRST_SAVE_SECONDS = 60.0  # before this nothing that could be lost would be worth a save
FLUSH_SECONDS = 10.0  # how often records go to the (shared) disk


class Decision(NamedTuple):
    """What all ranks do after this step. `stopped`: why the training ends here, before its last step."""

    stopped: str | None = None
    save: bool = False
    flush: bool = False


@dataclass
class Moment:
    """A step, and when it was reached (seconds of the monotonic clock)."""

    step: int
    at: float

    @classmethod
    def now(cls, step: int) -> Moment:
        """This moment."""
        return cls(step, time.monotonic())


class Agreement:
    """What the ranks agree on, from the step on at which this process began.

    Rank 0's clock decides when to save, to write and to agree again; they also save every so many steps of the run.
    Any rank's reason stops all of them, and so does a save that failed on any.
    """

    def __init__(
        self, length: Length, ranks: Ranks, interruption: Interruption, checkpoints: Checkpoints, step: int
    ) -> None:
        self.length, self.ranks, self.interruption, self.checkpoints = length, ranks, interruption, checkpoints
        self.began = self.next_step = step
        self.agreed, self.saved, self.flushed = Moment.now(step), Moment.now(step), Moment.now(step)

    def due(self, step: int) -> bool:
        """Whether the ranks agree after this step."""
        every = self.length.checkpoint_every_steps
        return step >= self.next_step or (every is not None and step % every == 0)

    def reach(self, step: int) -> Decision:
        """What is to be done after this step; also tells the checkpoints how the save in the background goes.

        Collective. Raises as `Checkpoints.agree` does where that save has failed, and RuntimeError where the GPU hangs.
        """
        # Replayed steps are queued much faster than they are computed: the clock would tell of the queue.
        wait_for(self.ranks.device, TIMEOUT.total_seconds())
        now, reason = time.monotonic(), self.interruption.reason
        wanted = [self.checkpoints.progress, float(reason is not None), 0.0, 0.0, 0.0]
        if self.ranks.rank == 0:
            per_step = (now - self.agreed.at) / max(1, step - self.agreed.step)
            wanted[2:] = [
                float(now - self.saved.at >= self._save_every_seconds()),
                float(now - self.flushed.at >= FLUSH_SECONDS),
                max(1.0, AGREE_SECONDS // max(per_step, 1e-4)),
            ]
        progress, stop, save, flush, interval = self.ranks.largest(wanted)
        free = self.checkpoints.agree(progress)
        # The first steps of a process include all that is built and compiled: no later step takes as long.
        longest = now - self.agreed.at if self.agreed.step > self.began else 0.0
        self.interruption.leave_room(self.checkpoints.longest_save_seconds, longest)
        self.next_step = step + int(interval)
        stopped = next(given for given in self.ranks.gather(reason) if given) if stop else None
        return Decision(stopped, save=(bool(save) or self._save_by_steps(step)) and free, flush=bool(flush))

    def done(self, step: int) -> None:
        """What was decided has been done: the time until the next agreement counts from here."""
        self.agreed = Moment.now(step)

    def _save_by_steps(self, step: int) -> bool:
        """Whether a checkpoint by steps is due. While the one before is still being written, it stays due."""
        every = self.length.checkpoint_every_steps
        return every is not None and step // every > self.saved.step // every

    def _save_every_seconds(self) -> float:
        """Soon for the first time where the job will end: what a save takes has to be known by then."""
        seconds = self.length.checkpoint_minutes * 60
        unknown = self.interruption.end_time is not None and self.checkpoints.longest_save_seconds == 0
        return min(seconds, FIRST_SAVE_SECONDS) if unknown else seconds
