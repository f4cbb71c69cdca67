"""One process that meets a planted fault: `python -m relay.launch.worker selftest.planted WORK --help`."""

import os
import signal
import time
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from relay.base import options
from relay.chain.signals import Interruption
from relay.preflight.facts import specification
from relay.probe.process import without_room_told
from relay.process.ranks import Ranks
from relay.selftest.parts import FAULTS, FIRST

SILENCE = timedelta(seconds=15)  # after which a collective is given up; a run's is minutes
TOO_MUCH_BYTES = 2**50


def fail(name: str, device: torch.device) -> None:
    """Meet the fault of this name, on one of the processes. Raises what it leads to."""
    if name == "own_error":
        raise ValueError("planted by the self-test")
    if name == "killed_peer":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hang":
        time.sleep(10 * SILENCE.total_seconds())
    if name == "no_memory":
        with without_room_told():
            torch.empty(TOO_MUCH_BYTES, dtype=torch.uint8, device=device)


def _plant(variables: Mapping[str, str]) -> None:
    """Set them here: Slurm, and what the site's file sets for each process, would have the last word otherwise."""
    for name, value in variables.items():
        os.environ[name] = os.environ.get(name, "0").split(",")[0] if value == FIRST else value


def main(arguments: list[str]) -> None:
    """Parse the command line, meet the others in a collective, and then the fault, before a second collective.

    Faults of the environment are met by the first one.
    """
    parser = options.parser(__doc__, "spec", prog="selftest.planted")
    parser.add_argument("--fault", required=True, choices=FAULTS)
    given = parser.parse_args(arguments)

    Interruption().watch(last_resort=False)  # as a process that trains: it lives on to tell where it was
    run, _ = specification(given.spec)
    _plant(FAULTS[given.fault].variables.get(run.shape.backend or "", {}))
    ranks = Ranks.join(run.shape.device, run.shape.backend)
    group = dist.new_group(backend=ranks.backend, timeout=SILENCE)
    tensor = torch.ones(1, device=ranks.device if ranks.backend == "nccl" else "cpu")
    for turn in range(2):
        if turn and ranks.rank == ranks.world_size - 1:
            fail(given.fault, ranks.device)
        dist.all_reduce(tensor, group=group)
        tensor.item()  # waits for the device
    ranks.leave()
