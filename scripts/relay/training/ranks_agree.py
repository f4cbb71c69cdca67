"""The ranks agree between steps, about once a second: whether to stop, to save, and to write records."""

from __future__ import annotations

import time

from relay.chain import agreement as chain_agreement
from relay.chain.agreement import Decision
from relay.chain.signals import Interruption
from relay.process.devices import wait_for
from relay.process.ranks import TIMEOUT, Ranks
from relay.spec.recipe import Length
from relay.training.checkpoint import Checkpoints

FLUSH_SECONDS = 10.0  # how often records go to the (shared) disk


class Agreement(chain_agreement.Agreement):
    """What the ranks agree on, as in a user's chain; also when to write records.

    A save that failed on any rank ends all of them.
    """

    def __init__(
        self, length: Length, ranks: Ranks, interruption: Interruption, checkpoints: Checkpoints, step: int
    ) -> None:
        super().__init__(ranks, interruption, step, length.checkpoint_minutes * 60, length.checkpoint_every_steps)
        self.device, self.checkpoints = ranks.device, checkpoints
        self.flushed_at = time.monotonic()

    def decide(self, step: int) -> Decision:
        """What is to be done after this step; also tells the checkpoints how the save in the background goes.

        Collective. Raises as `Checkpoints.agree` does where that save has failed, and RuntimeError where the GPU hangs.
        """
        # Replayed steps are queued much faster than they are computed: the clock would tell of the queue.
        wait_for(self.device, TIMEOUT.total_seconds())
        write = self.ranks.rank == 0 and time.monotonic() - self.flushed_at >= FLUSH_SECONDS
        longest = self.checkpoints.longest_save_seconds
        decision = self.reach(step, self.checkpoints.progress, longest, write=write)
        free = self.checkpoints.agree(decision.progress)
        # A save that has just ended counts already.
        self.interruption.leave_room(self.checkpoints.longest_save_seconds, self.longest_step_seconds)
        return decision._replace(save=decision.save and free)
