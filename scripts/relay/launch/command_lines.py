"""The command line that starts a run's processes on one node, and how those of several nodes find each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relay.base.errors import UserError
from relay.spec.run import Specification

SHUTDOWN_SECONDS = 600  # torchrun's 30 would cut off the save of a large model
# Above the ports of common services, below Linux's own range for outgoing connections (32768 on).
FIRST_PORT, PORTS = 20_000, 10_000


@dataclass(frozen=True)
class Meeting:
    """Where the processes of several nodes meet: rank 0's node, and this node's place among them."""

    address: str
    port: int
    node: int

    @classmethod
    def of_slurm(cls, environment: Mapping[str, str], nodes: int) -> Meeting:
        """From the variables of one of srun's tasks.

        The address is the launching node's: node names need not resolve. The port follows from the job's id, so that
        all nodes know it and two jobs on a node differ. Raises UserError where the other nodes could not reach it.
        """
        address = environment.get("SLURM_LAUNCH_NODE_IPADDR", "")
        if not address or (nodes > 1 and address.startswith("127.")):
            raise UserError(
                f"SLURM_LAUNCH_NODE_IPADDR: '{address}' is not allowed with {nodes} nodes; allowed: an address that "
                "they can reach (ask your site why Slurm gives nodes this one)"
            )
        port = FIRST_PORT + int(environment["SLURM_JOB_ID"]) % PORTS
        return cls(address, port, int(environment["SLURM_NODEID"]))


def command(
    run: Specification, python: Sequence[str], program: Sequence[str], meeting: Meeting | None = None
) -> list[str]:
    """The command line for one node; `program` is what `relay.launch.worker` takes: role, work and arguments.

    `python` starts the interpreter of the run's environment. With launcher `srun` it is one process's, as without any.
    `meeting` is needed for torchrun on several nodes.
    """
    if run.shape.launcher == "spawn":
        return [*python, "-m", "relay.launch.spawn", str(run.shape.processes_per_node), *program]
    worker = ["-m", "relay.launch.worker", *program]
    if run.shape.launcher != "torchrun":
        return [*python, *worker]
    torchrun = ["-m", "relay.launch.torchrun", f"--nproc-per-node={run.shape.processes_per_node}"]
    if run.shape.nodes == 1:
        torchrun.append("--standalone")  # a free port of this node, so that two runs on it never meet
    else:
        assert meeting is not None
        # Static: ranks follow the nodes' order, and rank 0 is where the address is.
        torchrun += [f"--nnodes={run.shape.nodes}", f"--node-rank={meeting.node}", "--rdzv-backend=static"]
        torchrun += [f"--master-addr={meeting.address}", f"--master-port={meeting.port}"]
    return [*python, *torchrun, f"--shutdown-timeout={SHUTDOWN_SECONDS}", *worker]


def rank_variables(run: Specification, environment: Mapping[str, str], meeting: Meeting) -> dict[str, str]:
    """What torchrun would tell a process, for one that srun has started itself."""
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": str(run.shape.world_size),
        "LOCAL_WORLD_SIZE": str(run.shape.processes_per_node),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
    }
