"""Starts a gate's processes as forks of this one, which has torch imported already: for many short gates in a row.

Importing costs each process seconds, the gate of a tiny task one. They are processes as torchrun's are, with sockets
and ends of their own; but all on this machine, and with this process's code.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from relay.run_folder import faults
from relay.spec.run import Gate

LONGEST_SECONDS = 300.0  # a gate of a tiny task takes seconds: what takes so long hangs
HUNG = 124  # as of timeout(1)


def start(specification: Path, role: str, work: Path, arguments: Sequence[str], code: Path) -> int:
    """Run the processes of a role to their end, as `relay.launch.launcher.launch` does, whose arguments these are.

    Returns the first exit status that is not 0 (negative: the signal that killed it), or HUNG.
    """
    assert role == "equivalence.gate", "only gates are short enough"
    from relay import strategies  # with torch, once
    from relay.equivalence import gate

    run = Gate.read(specification)
    world_size = run.shape.world_size
    _find_in(code / "relay" / "strategies", strategies)
    with suppress(Exception):  # the forks fail in the same way, where it is recorded
        strategies.load(run.strategy.name)  # with what it needs of torch, once
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            _become(rank, world_size, port)
            faults.guarded(work, lambda: gate.main(list(arguments)))
            os._exit(1)  # a gate ends its process itself
        children.append(child)
    return _wait_for(children)


def _find_in(folder: Path, package: ModuleType) -> None:
    """Look in a folder for modules that the package lacks: a user's own strategies are in the snapshot alone."""
    place = str(folder.resolve())
    if place not in package.__path__:
        package.__path__.append(place)


def _become(rank: int, world_size: int, port: int) -> None:
    """Tell this process what torchrun would tell it."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in told.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    sys.stdout.flush()


def _wait_for(children: list[int]) -> int:
    """The first status of any that is not 0; the others are then ended, as are all where they take too long."""
    deadline, status, waiting = time.monotonic() + LONGEST_SECONDS, 0, set(children)
    while waiting:
        ended, told = os.waitpid(-1, os.WNOHANG)
        if ended in waiting:
            waiting.remove(ended)
            status = status or os.waitstatus_to_exitcode(told)
            deadline = min(deadline, time.monotonic() + 60) if status else deadline
        elif time.monotonic() > deadline:
            status = status or HUNG
            for child in waiting:
                os.kill(child, signal.SIGKILL)
            deadline = float("inf")
        else:
            time.sleep(0.01)
    return status
