"""Starts all processes of a node, and waits for them: the launchers `direct`, `spawn` and `horovodrun`.

    python -m relay.launch.node LAUNCHER COUNT ROLE WORK [arguments of the role]

`direct` starts them without torch, whose import takes seconds. `spawn` starts them with torch.multiprocessing, as in
document 004. `horovodrun` leaves it to Horovod's own program (`relay.launch.horovodrun`).
"""

import os
import sys
from functools import partial

from relay.base import lifeline
from relay.chain.supervisor import Process, Supervisor
from relay.launch import horovodrun, worker
from relay.launch.command_lines import free_port, rank_variables
from relay.process import meeting


def main(launcher: str, count: int, program: list[str]) -> int:
    """Start `count` processes and wait for them. Returns 0, or 1 after one has failed and the others were ended."""
    lifeline.lead()
    kind = horovodrun.Past if launcher == "horovodrun" else Supervisor
    with kind() as supervisor, meeting.private_folder():
        if isinstance(supervisor, horovodrun.Past):
            supervisor.begin(count, program)
        elif launcher == "spawn":
            _spawn(supervisor, count, program)
        else:
            port, words = free_port(), [sys.executable, "-u", "-m", "relay.launch.worker", *program]
            for rank in range(count):
                supervisor.start(words, {**os.environ, **rank_variables(rank, rank, count, count, port)})
        supervisor.wait()
        if supervisor.failed and launcher != "horovodrun":  # which tells it itself
            print("rank {} ended with status {}".format(*supervisor.failed), file=sys.stderr)
        return int(supervisor.failed is not None)


def _spawn(supervisor: Supervisor, count: int, program: list[str]) -> None:
    import torch.multiprocessing as mp

    context = mp.start_processes(_process, (count, free_port(), program), count, join=False, start_method="spawn")
    assert context is not None  # it is None only with join=True
    supervisor.processes += [Process(each.pid, partial(getattr, each, "exitcode")) for each in context.processes]


def _process(rank: int, count: int, port: int, program: list[str]) -> None:
    """Run one of the spawned processes, with the environment variables that torchrun would set."""
    os.environ.update(rank_variables(rank, rank, count, count, port))
    worker.work(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
