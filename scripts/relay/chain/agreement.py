"""What the processes of one training agree on between steps: whether to save, to stop, to write what has gathered."""

from __future__ import annotations

import time
from typing import NamedTuple

from .peers import Peers
from .saving import Saver
from .signals import Interruption

AGREE_SECONDS = 1.0
FIRST_SAVE_SECONDS = 60.0  # before a job ends, it has to be known what a save takes


class Decision(NamedTuple):
    """What all ranks do after this step. `stopped` says why the job ends here; `progress` is that of the save.

    `write`: what has gathered is written, as rank 0 wished.
    """

    progress: float
    save: bool
    stopped: str | None
    write: bool = False


class Agreement:
    """What the ranks agree on, from the step on at which this job began.

    Rank 0's clock decides when to save and when to agree again. Any rank's reason stops all of them.
    """

    def __init__(
        self, ranks: Peers, interruption: Interruption, step: int, save_seconds: float, save_steps: int | None
    ) -> None:
        self.ranks, self.interruption = ranks, interruption
        self.save_seconds, self.save_steps = save_seconds, save_steps
        self._began = self._next = self._agreed_step = self._saved_step = step
        self._agreed_at = self._saved_at = time.monotonic()
        self.longest_step_seconds = 0.0  # since the ranks agreed before

    def due(self, step: int) -> bool:
        """Whether the ranks agree after this step; the same on all of them. For one process it costs nothing."""
        if self.ranks.control is None:
            return True
        return step >= self._next or (self.save_steps is not None and step % self.save_steps == 0)

    def reach(self, step: int, progress: float, longest_save_seconds: float, *, write: bool = False) -> Decision:
        """Decide what is done after this step. Collective.

        `progress` is this rank's part of the save under way; `longest_save_seconds` is 0 where none has ended.
        """
        self.ranks.wait_for_device()  # the clock would tell of what is queued, not of what is computed
        now, reason = time.monotonic(), self.interruption.reason
        wanted = [progress, float(reason is not None), float(write), 0.0, 0.0]
        if self.ranks.rank == 0:
            per_step = (now - self._agreed_at) / max(1, step - self._agreed_step)
            wanted[3:] = [float(self._save_is_due(now, longest_save_seconds)), AGREE_SECONDS // max(per_step, 1e-4)]
        progress, stop, write_now, save, interval = self.ranks.largest(wanted)
        # The first steps of a process include all that is compiled then: no later step takes as long.
        self.longest_step_seconds = now - self._agreed_at if self._agreed_step > self._began else 0.0
        self.interruption.leave_room(longest_save_seconds, self.longest_step_seconds)
        self._next = step + max(1, int(interval))
        stopped = next(each for each in self.ranks.gather(reason) if each) if stop else None
        return Decision(progress, bool(save) or self._save_by_steps(step), stopped, bool(write_now))

    def decide(self, step: int, saver: Saver, *, write: bool = False) -> Decision:
        """The same for what saves in the background, which is told how far the save under way is. Collective.

        `save` is then true only where another save can begin. Raises what the save under way has failed with.
        """
        decision = self.reach(step, saver.progress, saver.longest_save_seconds, write=write)
        self.interruption.saving = not (free := saver.agree(decision.progress))
        # A save that has just ended counts already.
        self.interruption.leave_room(saver.longest_save_seconds, self.longest_step_seconds)
        return decision._replace(save=decision.save and free)

    def done(self, step: int, *, saved: bool) -> None:
        """What was decided has been done: the time until the next agreement counts from here."""
        self._agreed_step, self._agreed_at = step, time.monotonic()
        if saved:
            self._saved_step, self._saved_at = step, self._agreed_at

    def _save_is_due(self, now: float, longest_save_seconds: float) -> bool:
        unknown = self.interruption.end_time is not None and longest_save_seconds == 0
        seconds = min(self.save_seconds, FIRST_SAVE_SECONDS) if unknown else self.save_seconds
        return now - self._saved_at >= seconds

    def _save_by_steps(self, step: int) -> bool:
        """Whether a save by steps is due. While the one before is still being written, it stays due."""
        return self.save_steps is not None and step // self.save_steps > self._saved_step // self.save_steps
