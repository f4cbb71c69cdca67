"""The first program of each of srun's tasks; it knows what only the node knows, and starts the run's processes there.

    python -m relay.launch.step prepare SPECIFICATION WORK
    python -m relay.launch.step start SPECIFICATION ROLE WORK [arguments of the role]

It runs on the driver's interpreter, then becomes that of the run's environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from relay.environments.node import interpreter, node_disk, own_folder, prepare
from relay.launch.command_lines import Meeting, command, rank_variables
from relay.process.cpus import BINDING, SHARE, VEILED
from relay.run_folder import faults
from relay.spec.identity import fingerprint
from relay.spec.job import Job
from relay.spec.run import Specification

# Tells the processes where the node's own disk is.
NODE_DISK = "TORCH_RELAY_NODE_DISK"


def variables(run: Specification, job: Job, disk: Path) -> dict[str, str]:
    """What the processes find in their environment: threads and their places, the network's interface, caches."""
    found = {"OMP_NUM_THREADS": str(run.shape.threads)}
    named = {"stack": "OMP_STACKSIZE"}
    if job.confined:
        # Only where a process has CPUs of its own: else all processes of a node would be bound to the same ones.
        together = run.shape.launcher in ("torchrun", "spawn")
        named |= dict(zip(("places", "bind"), (VEILED * together + name for name in BINDING), strict=True))
        found[SHARE] = str(run.shape.cpus_per_task)
    found |= {name: job.openmp[key] for key, name in named.items() if job.openmp.get(key)}
    if job.network_interface:
        found |= {"NCCL_SOCKET_IFNAME": job.network_interface, "GLOO_SOCKET_IFNAME": job.network_interface}
    # What torch compiles must not be built, or locked, on a shared filesystem, nor where others may write.
    caches = own_folder(disk) / f"cache-{fingerprint(job.environment)}"
    found |= {"TORCH_EXTENSIONS_DIR": str(caches / "torch"), "TRITON_CACHE_DIR": str(caches / "triton")}
    return found | {NODE_DISK: str(disk)}


def start(specification: Path, program: list[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command line that this task becomes, and the whole environment that it gets."""
    run, job = Specification.read(specification), Job.read(specification)
    assert job is not None
    disk = node_disk(job.node_disk)
    told = variables(run, job, disk)
    meeting = (
        Meeting.of_slurm(environment, run.shape.nodes) if run.shape.nodes > 1 or run.shape.launcher == "srun" else None
    )
    if run.shape.launcher == "srun":
        assert meeting is not None
        told |= rank_variables(run, environment, meeting)
    python = interpreter(job.environment, disk)
    return command(run, python, program, meeting), {**environment, **told}


def main(arguments: list[str]) -> None:
    """Prepare the node, or become the run's processes; what goes wrong is recorded like a process's own fault."""
    verb, specification, *program = arguments
    os.environ["RANK"] = os.environ["SLURM_PROCID"]  # whose fault it is
    if verb == "prepare":
        job = Job.read(Path(specification))
        assert job is not None
        faults.guarded(Path(program[0]), lambda: prepare(job.environment, node_disk(job.node_disk)))
        return

    def become() -> None:
        words, environment = start(Path(specification), program, os.environ)
        os.execvpe(words[0], words, environment)

    faults.guarded(Path(program[1]), become)


if __name__ == "__main__":
    main(sys.argv[1:])
