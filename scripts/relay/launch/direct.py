"""Launcher `direct`: starts the processes of its node without torch, whose import takes seconds.

    python -m relay.launch.direct COUNT ROLE WORK [arguments of the role]

SIGTERM, SIGINT and SIGUSR2 are passed on, so that the processes can save and end by themselves.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from types import FrameType

from relay.base import lifeline
from relay.launch.command_lines import free_port, one_node_variables
from relay.process import meeting
from relay.process.interruption import SIGNALS

Processes = dict[int, "subprocess.Popen[bytes]"]  # by rank
PATIENCE_SECONDS = 600.0  # for processes that save a large model after a signal, or when another one has failed
LOOK_SECONDS = 0.1  # between two looks at the processes


def start(count: int, program: list[str]) -> Processes:
    """Start so many workers."""
    port, words = free_port(), [sys.executable, "-u", "-m", "relay.launch.worker", *program]
    return {
        rank: subprocess.Popen(words, env={**os.environ, **one_node_variables(rank, count, port)})
        for rank in range(count)
    }


def send(processes: Processes, number: int) -> None:
    """Send a signal to those that still run."""
    for process in processes.values():
        process.send_signal(number)  # none to one that has been waited for


def wait(processes: Processes, received: list[int]) -> tuple[int, int] | None:
    """Wait for all to end; rank and status of the first that fails, None if none does.

    A failure ends the others. Whoever does not heed that, or a signal that was `received`, is killed in the end.
    """
    failure, deadline = None, math.inf
    while running := {rank: process for rank, process in processes.items() if process.poll() is None}:
        failure = failure or _failure(processes)
        if (failure or received) and deadline == math.inf:
            deadline = time.monotonic() + PATIENCE_SECONDS
            if failure:
                send(processes, signal.SIGTERM)
        if time.monotonic() > deadline:
            for process in running.values():
                process.kill()
        time.sleep(LOOK_SECONDS)
    return failure or _failure(processes)


def _failure(processes: Processes) -> tuple[int, int] | None:
    ended = ((rank, process.returncode) for rank, process in processes.items())
    return next(((rank, status) for rank, status in ended if status), None)


def main(count: int, program: list[str]) -> int:
    """Start `count` processes and wait for them. Returns 0, or 1 after one has failed and the others were ended."""
    lifeline.lead()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where a parent ignores it, the kernel keeps no status
    processes: Processes = {}
    received: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        received.append(signal.SIGTERM if number == signal.SIGUSR2 else number)
        send(processes, received[-1])

    for number in SIGNALS:
        signal.signal(number, pass_on)
    with meeting.made():
        processes |= start(count, program)
        for early in received:  # before there was somebody to pass it on to
            send(processes, early)
        failure = wait(processes, received)
    if failure:
        print("rank {} ended with status {}".format(*failure), file=sys.stderr)
    return int(failure is not None)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
