"""Launcher `spawn`: one process starts all processes of its node with torch.multiprocessing, as in document 004.

python -m relay.launch.spawn COUNT ROLE WORK [arguments of the role]
"""

from __future__ import annotations

import os
import sys
from functools import partial

import torch.multiprocessing as mp

from relay.base import lifeline
from relay.chain.supervisor import Process, Supervisor
from relay.launch import worker
from relay.launch.command_lines import free_port, one_node_variables
from relay.launch.direct import outcome
from relay.process import meeting


def _process(local_rank: int, count: int, port: int, program: list[str]) -> None:
    """Run one of the processes, with the environment variables that torchrun would set."""
    os.environ.update(one_node_variables(local_rank, count, port))
    worker.work(program)


def main(count: int, program: list[str]) -> int:
    """Start `count` processes and wait for them. Returns 0, or 1 after one has failed and the others were ended."""
    lifeline.lead()
    with Supervisor() as supervisor, meeting.private_folder():
        context = mp.start_processes(_process, (count, free_port(), program), count, join=False, start_method="spawn")
        assert context is not None  # it is None only with join=True
        supervisor.processes += [Process(each.pid, partial(getattr, each, "exitcode")) for each in context.processes]
        return outcome(supervisor)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
