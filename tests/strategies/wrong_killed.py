"""Wrong: its process is killed, as by a machine that has run out of memory."""

import os
import signal

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Killed(ByHand):
    """Wrong: its process is killed, as by a machine that has run out of memory."""

    requirements = Requirements(processes="one", devices=("cpu",))

    def build(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
