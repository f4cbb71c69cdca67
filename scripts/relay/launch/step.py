"""The first program of each of srun's tasks. It prepares a node, or starts the run's processes on it.

    python -m relay.launch.step prepare SPECIFICATION WORK
    python -m relay.launch.step start SPECIFICATION ROLE WORK [arguments of the role]

It starts in the driver's interpreter. `start` then replaces the process by the interpreter of the run's environment.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from relay.base.lifeline import LAUNCHER
from relay.environments.node import interpreter, prepare
from relay.environments.node_folder import node_disk, own_folder
from relay.launch.command_lines import COMPILED, Meeting, command, is_script, rank_variables
from relay.process.cpus import BINDING, SHARE, VEILED
from relay.run_folder import together
from relay.spec.identity import fingerprint
from relay.spec.job import Job
from relay.spec.run import Specification

# The variable with the folder on the node's own disk, for the run's processes.
NODE_DISK = "TORCH_RELAY_NODE_DISK"


def variables(run: Specification, job: Job, disk: Path) -> dict[str, str]:
    """The processes' environment variables for threads and their places, network interface, caches and node disk."""
    values = {"OMP_NUM_THREADS": str(run.shape.threads)}
    openmp = {"stack": "OMP_STACKSIZE"}
    if job.confined:
        # Without confinement, all processes of a node would be bound to the same CPUs.
        together = run.shape.launcher in ("torchrun", "direct", "spawn", "horovodrun")
        openmp |= dict(zip(("places", "bind"), (VEILED * together + name for name in BINDING), strict=True))
        values[SHARE] = str(run.shape.cpus_per_task)
    values |= {name: job.openmp[key] for key, name in openmp.items() if job.openmp.get(key)}
    if job.network_interface:
        values |= {"NCCL_SOCKET_IFNAME": job.network_interface}
        if run.shape.nodes > 1 or is_script(run):  # the project's own processes of one node take the loopback
            values |= {"GLOO_SOCKET_IFNAME": job.network_interface}
    # Compiled code belongs on the node's disk: shared filesystems are slow to lock. No other user may write to it.
    caches = own_folder(disk) / f"cache-{fingerprint(job.environment)}"
    values |= {"TORCH_EXTENSIONS_DIR": str(caches / "torch"), "TRITON_CACHE_DIR": str(caches / "triton")}
    values |= {COMPILED: str(caches / "inductor")}
    return values | {NODE_DISK: str(disk)}


def start(specification: Path, program: list[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command line that replaces this task, and its whole environment."""
    run, job = Specification.read(specification), Job.read(specification)
    assert job is not None
    disk = node_disk(job.node_disk)
    values = variables(run, job, disk)
    meeting = (
        Meeting.of_slurm(environment, run.shape.nodes) if run.shape.nodes > 1 or run.shape.launcher == "srun" else None
    )
    if run.shape.launcher == "srun":
        assert meeting is not None
        rank, local_rank = int(environment["SLURM_PROCID"]), int(environment["SLURM_LOCALID"])
        size, on_node = run.shape.world_size, run.shape.processes_per_node
        values |= rank_variables(rank, local_rank, size, on_node, meeting.port, meeting.address)
    elif meeting and is_script(run):
        values |= {"MASTER_ADDR": meeting.address, "MASTER_PORT": str(meeting.port)}
    python = interpreter(job.environment, disk)
    return command(run, python, program, meeting), {**environment, **values}


def main(arguments: list[str]) -> None:
    """Prepare the node, or become the run's processes. An error is recorded like a fault of a process."""
    verb, specification, *program = arguments
    os.environ["RANK"] = os.environ["SLURM_PROCID"]  # a recorded fault names its rank
    if verb == "prepare":
        job = Job.read(Path(specification))
        assert job is not None
        together.guarded(Path(program[0]), lambda: prepare(job.environment, node_disk(job.node_disk)))
        return

    def become() -> None:
        os.environ[LAUNCHER] = str(os.getppid())  # Slurm's daemon, which stays the parent of what this becomes
        words, environment = start(Path(specification), program, os.environ)
        os.execvpe(words[0], words, environment)

    together.guarded(Path(program[1]), become)


if __name__ == "__main__":
    main(sys.argv[1:])
