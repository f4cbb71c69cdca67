"""Launcher `direct`: starts the processes of its node without torch, whose import takes seconds.

    python -m relay.launch.direct COUNT ROLE WORK [arguments of the role]

SIGTERM, SIGINT and SIGUSR2 are passed on, so that the processes can save and end by themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

from relay.base import lifeline
from relay.launch.command_lines import free_port, one_node_variables
from relay.process.interruption import SIGNALS

Processes = dict[int, "subprocess.Popen[bytes]"]  # by rank
PATIENCE_SECONDS = 600.0  # for processes that save a large model when another one has failed


def start(count: int, program: list[str]) -> Processes:
    """Start so many workers."""
    port, words = free_port(), [sys.executable, "-m", "relay.launch.worker", *program]
    return {
        rank: subprocess.Popen(words, env={**os.environ, **one_node_variables(rank, count, port)})
        for rank in range(count)
    }


def send(processes: Processes, number: int) -> None:
    """Send a signal to those that still run."""
    for process in processes.values():
        process.send_signal(number)  # none to one that has been waited for


def first_failure(processes: Processes) -> tuple[int, int] | None:
    """Wait for the processes, in the order in which they end; rank and status of the first that fails, None if none."""
    running = dict(processes)
    while running:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # its status is left for Popen
        for rank, process in [*running.items()]:
            if (status := process.poll()) is not None:
                del running[rank]
                if status != 0:
                    return rank, status
    return None


def end(processes: Processes) -> None:
    """End those that still run; by SIGKILL those that do not heed SIGTERM."""
    send(processes, signal.SIGTERM)
    for process in processes.values():
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
            continue
        process.kill()
        process.wait()


def main(count: int, program: list[str]) -> int:
    """Start `count` processes and wait for them. Returns 0, or 1 after one has failed and the others were ended."""
    lifeline.lead()
    processes: Processes = {}
    received: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        received.append(signal.SIGTERM if number == signal.SIGUSR2 else number)
        send(processes, received[-1])

    for number in SIGNALS:
        signal.signal(number, pass_on)
    processes |= start(count, program)
    for early in received:  # before there was somebody to pass it on to
        send(processes, early)
    failure = first_failure(processes)
    if failure is None:
        return 0
    end(processes)
    print("rank {} ended with status {}".format(*failure), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
