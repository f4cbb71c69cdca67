"""The command line that starts a run's processes on one node, and the address where several nodes meet."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from relay.base.errors import UserError
from relay.process.meeting import TORCHRUN
from relay.spec.run import Specification, Training

# Above the ports of common services, below Linux's own range for outgoing connections (32768 on).
FIRST_PORT, PORTS = 20_000, 10_000


# Where torch.compile reads pickles and libraries. By default that is /tmp/torchinductor_USER, which anybody could make.
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
# A free port of a job's first node. The job's launcher, which runs there, has looked for it.
PORT = "TORCH_RELAY_PORT"


@dataclass(frozen=True)
class Meeting:
    """Where the processes of several nodes meet: address and port on rank 0's node. `node` is this node's index."""

    address: str
    port: int
    node: int

    @classmethod
    def of_slurm(cls, environment: Mapping[str, str], nodes: int) -> Meeting:
        """The meeting, from the environment variables of one of srun's tasks.

        The address is an IP address of the launching node, because node names need not resolve.
        Raises UserError for an address that other nodes cannot reach.
        """
        address = environment.get("SLURM_LAUNCH_NODE_IPADDR", "")
        if not address or (nodes > 1 and address.startswith("127.")):
            raise UserError(
                f"SLURM_LAUNCH_NODE_IPADDR: '{address}' is not allowed with {nodes} nodes; allowed: an address that "
                "they can reach (ask your site why Slurm gives nodes this one)"
            )
        return cls(address, int(environment[PORT]), int(environment["SLURM_NODEID"]))


def command(
    run: Specification, python: Sequence[str], program: Sequence[str], meeting: Meeting | None = None
) -> list[str]:
    """The command line for one node, or for one process with launcher `srun` or `none`.

    `python` are the words that start the interpreter of the run's environment. `program` are the arguments of
    `relay.launch.worker`: role, work and the role's arguments. `meeting` is needed for torchrun on several nodes.
    """
    if run.shape.launcher in ("direct", "spawn", "horovodrun"):
        node = ["-m", "relay.launch.node", run.shape.launcher, str(run.shape.processes_per_node)]
        return [*python, *node, *program]
    worker = ["-m", "relay.launch.worker", *program]
    if run.shape.launcher != "torchrun" or is_script(run):  # a command starts its node's processes itself
        return [*python, *worker]
    torchrun = ["-m", "relay.launch.torchrun", f"--nproc-per-node={run.shape.processes_per_node}"]
    if run.shape.nodes == 1:
        torchrun += TORCHRUN
    else:
        assert meeting is not None
        # With the static backend, ranks follow the order of the nodes, so that rank 0 is at the address.
        torchrun += [f"--nnodes={run.shape.nodes}", f"--node-rank={meeting.node}", "--rdzv-backend=static"]
        torchrun += [f"--master-addr={meeting.address}", f"--master-port={meeting.port}"]
    return [*python, *torchrun, *worker]


def is_script(run: Specification) -> bool:
    """Whether a command of the user's is run, and no strategy."""
    return isinstance(run, Training) and run.strategy.script is not None


def rank_variables(
    rank: int, local_rank: int, world_size: int, on_this_node: int, port: int, address: str = "127.0.0.1"
) -> dict[str, str]:
    """The environment variables of one of the processes that meet at an address, as torchrun sets them."""
    numbers = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": on_this_node}
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port), **{name: str(each) for name, each in numbers.items()}}


def free_port(address: str = "127.0.0.1") -> int:
    """A port at an address of this node ('': at all of them) that nobody uses just now.

    No outgoing connection may take it before it is needed. Launchers that look at the same time begin in different
    places. Raises UserError where all are in use.
    """
    for number in range(PORTS):
        port = FIRST_PORT + (os.getpid() + number) % PORTS
        with socket.socket() as listener, suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            return port
    raise UserError(f"ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} of this node are all in use")
