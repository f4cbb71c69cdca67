"""What a job asks Slurm for, and the software environment that it uses on the nodes.

In `run.json` it stands under the key `job`, beside the run. It is not part of the run's identity: another account or
another time limit is no reason to train again. Runs without a scheduler have no job.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

# What a site's file may hand to a compiler or linker: build tools put it into a shell's command.
FLAG = ("a flag such as -L$EBROOTCUDA/lib64", r"-[A-Za-z0-9._/+=,:${}@%-]+")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One Slurm job.

    A task is a task of Slurm: with launcher srun it is one process of the run, else it starts a node's processes.
    `memory_mb` is for each node; None means that none is asked for. `gpus_per_node` are those of the steps.
    `whole_node_gpus` are those that the job asks for where it must take all of a node; None: as many as the steps.
    `gpu_request` says with which of Slurm's options GPUs are asked for. `confined` says that the site keeps a task to
    its CPUs, memory and GPUs. `held`: it is no job of its own, but steps within the driver's allocation. `node_disk`
    may contain variables, which each node expands. `environment` is described in
    `relay.environments.login_node.environment_of`.
    """

    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    memory_mb: int | None
    gpus_per_node: int = 0
    gpu_name: str | None = None
    whole_node_gpus: int | None = None
    gpu_request: str = "gpus-per-node"
    minutes: int
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    confined: bool = False
    held: bool = False
    node_disk: str = "/tmp"
    network_interface: str | None = None
    openmp: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=lambda: {"mode": "current"})

    @property
    def tasks(self) -> int:
        """The number of Slurm's tasks on all nodes."""
        return self.nodes * self.tasks_per_node

    @property
    def step_gpus(self) -> str | None:
        """The flag of srun for the GPUs of each node; None for a job without GPUs."""
        return self._gpus_flag(self.gpus_per_node)

    @property
    def job_gpus(self) -> str | None:
        """The flag of sbatch for the GPUs of each node; None for a job without GPUs."""
        return self._gpus_flag(self.whole_node_gpus or self.gpus_per_node)

    def _gpus_flag(self, gpus: int) -> str | None:
        kind = f"{self.gpu_name}:" if self.gpu_name else ""
        option = "--gres=gpu:" if self.gpu_request == "gres" else "--gpus-per-node="
        return f"{option}{kind}{gpus}" if gpus else None

    @classmethod
    def read(cls, specification: Path) -> Self | None:
        """The job in a `run.json`, or None for a run without a scheduler."""
        return cls.of(json.loads(specification.read_text(encoding="utf-8")))

    @classmethod
    def of(cls, specification: Mapping[str, Any]) -> Self | None:
        """The job in the content of a `run.json`, or None for a run without a scheduler."""
        job = specification.get("job")
        return cls(**job) if job else None
