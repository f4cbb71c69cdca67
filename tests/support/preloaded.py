"""Processes that have imported torch already: forks of one server, for the many short trainings of the tests.

Importing torch costs a process two seconds of CPU time, a short gate a tenth of that. These are processes as a launcher
starts them, each with its own rank, sockets and end; but all on this machine and with this checkout's code. What
launchers themselves do is tested with real launchers. Where a specification asks for GPUs, they get pretended ones.
"""

import faulthandler
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import torch.multiprocessing

from living import LONGEST_SECONDS
from relay import strategies
from relay.process import meeting
from relay.process.ranks import Ranks
from relay.run_folder import alive, together
from relay.run_folder.alive import ATTEMPT
from relay.spec.run import Specification

ENDING_SECONDS = 30.0  # what the others have to end, when one has failed
#: What the server imports; most of the time is torch's and its distributed checkpoints'.
MODULES = ("torch._dynamo", "relay.equivalence.gate", "relay.equivalence.reference", "relay.planning.planner", "pytest")
SNAKEMAKE = ("snakemake.cli", "snakemake_executor_plugin_slurm")
HEAP = "frozen_heap"  # imported last
FORKED = "forkserver"


def spawned(work: Callable[..., None], world_size: int, *arguments: Any, gpus: int = 0) -> None:
    """Run `work(ranks, *arguments)` in so many processes, which have joined as ranks on CPUs, or on pretended `gpus`.

    What one of them raises is raised here, and ends the others. So does what ends the test, such as its time limit.
    """
    _serve()
    with _meeting() as folder:
        given = (_told(world_size, folder), gpus, work, arguments)
        ranks = torch.multiprocessing.start_processes(_rank, given, nprocs=world_size, start_method=FORKED, join=False)
        try:
            while not ranks.join():
                pass
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()


def start(specification: Path, role: str, work: Path, arguments: Sequence[str], code: Path) -> int:
    """Run the processes of a role to their end, as `relay.launch.launcher.launch` does, whose arguments these are.

    Returns the first exit status that is not 0 (negative: the signal that killed it).
    """
    _serve()
    shape = Specification.read(specification).shape
    world_size, gpus = shape.world_size, shape.devices_per_node if shape.device == "cuda" else 0
    with _meeting() as folder:
        given = (_told(world_size, folder), gpus, role, work, arguments, code)
        make = multiprocessing.get_context(FORKED).Process
        return _ended([make(target=_role, args=(rank, *given)) for rank in range(world_size)])


def _ended(processes: Sequence[Any]) -> int:
    """Start them and wait for all; the first exit status that is not 0."""
    for process in processes:
        process.start()
    deadline, status = time.monotonic() + LONGEST_SECONDS, 0
    while running := [process for process in processes if process.is_alive()]:
        connection.wait([process.sentinel for process in running], timeout=1)
        if not status and (status := _first_failure(processes)):
            deadline = time.monotonic() + ENDING_SECONDS
            for process in running:
                process.terminate()
        if time.monotonic() > deadline:
            for process in running:
                process.kill()
    return status or _first_failure(processes)


def forked(work: Callable[..., None], *arguments: Any) -> Any:
    """A process of its own that does `work(*arguments)`; it is started."""
    _serve()
    process = multiprocessing.get_context(FORKED).Process(target=work, args=arguments)
    process.start()
    return process


def _first_failure(processes: Sequence[Any]) -> int:
    return next((process.exitcode for process in processes if process.exitcode), 0)


def _serve() -> None:
    """Start the server unless it is there. It does not take over this process's `sys.path`, only the environment."""
    multiprocessing.set_forkserver_preload([*MODULES, *SNAKEMAKE, HEAP])
    path = os.pathsep.join(filter(None, sys.path))
    with mock.patch.dict(os.environ, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}):
        forkserver.ensure_running()


def _meeting() -> tempfile.TemporaryDirectory[str]:
    """Where ranks find each other, as those of one node do: a port could be another test's before they come to it."""
    return tempfile.TemporaryDirectory(prefix="relay-meeting-", ignore_cleanup_errors=True)


def _told(world_size: int, folder: str) -> dict[str, str]:
    """What a launcher tells all ranks. Lightning asks for the port, and does not use it."""
    sizes = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), ATTEMPT: alive.attempt()}
    place = {meeting.VARIABLE: folder, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return place | sizes | {"OMP_NUM_THREADS": "1"}


def _become(rank: int, told: Mapping[str, str], gpus: int) -> None:
    os.environ |= {**told, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    faulthandler.enable()  # as a worker does
    torch.set_num_threads(1)
    if gpus:
        import pretended_gpu

        pretended_gpu.install(gpus)


def _rank(rank: int, told: Mapping[str, str], gpus: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    _become(rank, told, gpus)
    ranks = Ranks.join("cuda" if gpus else "cpu", "gloo", max(1, gpus // int(told["WORLD_SIZE"])))
    work(ranks, *arguments)
    ranks.leave()


def _role(
    rank: int, told: Mapping[str, str], gpus: int, role: str, work: Path, arguments: Sequence[str], code: Path
) -> None:
    _become(rank, told, gpus)
    strategies.__path__.append(str(code / "relay" / "strategies"))  # where one of a further folder has been copied
    together.guarded(work, lambda: import_module(f"relay.{role}").main(list(arguments)))
