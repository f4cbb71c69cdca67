"""What a job asks Slurm for, and the software environment that it uses on the nodes.

In `run.json` it stands under the key `job`, beside the run. It is not part of the run's identity: another account or
another time limit is no reason to train again. Runs without a scheduler have no job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Job:
    """One Slurm job.

    A task is a task of Slurm: with launcher srun it is one process of the run, else it starts a node's processes.
    `memory_mb` is for each node. `confined` says that the site keeps a task to its CPUs, memory and GPUs.
    `node_disk` may contain variables, which each node expands. `environment` is described in
    `relay.environments.login_node.asked`.
    """

    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    memory_mb: int
    gpus_per_node: int = 0
    gpu_name: str | None = None
    minutes: int
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    confined: bool = False
    node_disk: str = "/tmp"
    network_interface: str | None = None
    openmp: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=lambda: {"mode": "current"})

    @property
    def tasks(self) -> int:
        """The number of Slurm's tasks on all nodes."""
        return self.nodes * self.tasks_per_node

    @property
    def gpus_flag(self) -> str | None:
        """Slurm's flag for the GPUs of each node, the same for sbatch and srun; None for a job without GPUs."""
        if not self.gpus_per_node:
            return None
        kind = f"{self.gpu_name}:" if self.gpu_name else ""
        return f"--gpus-per-node={kind}{self.gpus_per_node}"

    @classmethod
    def read(cls, specification: Path) -> Job | None:
        """The job in a `run.json`, or None for a run without a scheduler."""
        return cls.of(json.loads(specification.read_text(encoding="utf-8")))

    @classmethod
    def of(cls, specification: Mapping[str, Any]) -> Job | None:
        """The job in the content of a `run.json`, or None for a run without a scheduler."""
        job = specification.get("job")
        return cls(**job) if job else None
