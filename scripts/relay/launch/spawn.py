"""Launcher `spawn`: one process starts all processes of its node with torch.multiprocessing, as in document 004.

    python -m relay.launch.spawn COUNT ROLE WORK [arguments of the role]

SIGTERM, SIGINT and SIGUSR2 are passed on, so that the processes can save and end by themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import torch.multiprocessing as mp

from relay.base import lifeline
from relay.launch import worker
from relay.launch.command_lines import free_port, one_node_variables
from relay.process import meeting
from relay.process.interruption import SIGNALS


def _process(local_rank: int, count: int, port: int, program: list[str]) -> None:
    """Run one of the processes, with the environment variables that torchrun would set."""
    os.environ.update(one_node_variables(local_rank, count, port))
    worker.work(program)


def main(count: int, program: list[str]) -> int:
    """Start `count` processes and wait for them. Returns 0, or 1 after one has failed and the others were ended."""
    lifeline.lead()
    with meeting.made():
        return _run(count, program)


def _run(count: int, program: list[str]) -> int:
    context = mp.start_processes(_process, (count, free_port(), program), count, join=False, start_method="spawn")
    assert context is not None  # it is None only with join=True

    def pass_on(number: int, _: FrameType | None) -> None:
        for process in context.processes:
            if process.pid and process.is_alive():
                os.kill(process.pid, signal.SIGTERM if number == signal.SIGUSR2 else number)

    for number in SIGNALS:
        signal.signal(number, pass_on)
    try:
        while not context.join(timeout=None):
            pass
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        print(f"a process ended early: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
