"""Launcher `direct`: starts the processes of its node without torch, whose import takes seconds.

python -m relay.launch.direct COUNT ROLE WORK [arguments of the role]
"""

from __future__ import annotations

import os
import sys

from relay.base import lifeline
from relay.chain.supervisor import Supervisor
from relay.launch.command_lines import free_port, one_node_variables
from relay.process import meeting


def main(count: int, program: list[str]) -> int:
    """Start `count` processes and wait for them. Returns 0, or 1 after one has failed and the others were ended."""
    lifeline.lead()
    with Supervisor() as supervisor, meeting.private_folder():
        port, words = free_port(), [sys.executable, "-u", "-m", "relay.launch.worker", *program]
        for rank in range(count):
            supervisor.start(words, {**os.environ, **one_node_variables(rank, count, port)})
        return outcome(supervisor)


def outcome(supervisor: Supervisor) -> int:
    """Wait for the ranks; the launcher's exit status. The first that has failed is told."""
    supervisor.wait()
    if supervisor.failed:
        print("rank {} ended with status {}".format(*supervisor.failed), file=sys.stderr)
    return int(supervisor.failed is not None)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
