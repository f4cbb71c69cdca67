"""What a specification's job asks of Slurm, and the environment that it finds on the nodes.

It stands in `run.json` under the key `job`, beside the run and out of its identity: another account or another time
limit is no reason to train again. There is none where no scheduler is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Job:
    """One Slurm job. A task is Slurm's: a process of the run with launcher srun, else what starts a node's processes.

    `memory_mb` is for each node. `confined`: the site keeps a task to the CPUs, memory and GPUs it was given.
    `node_disk` may name variables of the step's environment. `environment` is `node_environment`'s.
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
        """Slurm's tasks on all nodes."""
        return self.nodes * self.tasks_per_node

    @property
    def gpus_flag(self) -> str | None:
        """Slurm's flag for the GPUs of each node, the same for sbatch and srun; None for a job without any."""
        if not self.gpus_per_node:
            return None
        kind = f"{self.gpu_name}:" if self.gpu_name else ""
        return f"--gpus-per-node={kind}{self.gpus_per_node}"

    @classmethod
    def read(cls, specification: Path) -> Job | None:
        """The job of a `run.json`; None where the run needs no scheduler."""
        return cls.of(json.loads(specification.read_text(encoding="utf-8")))

    @classmethod
    def of(cls, specification: Mapping[str, Any]) -> Job | None:
        """The same of what such a file holds."""
        given = specification.get("job")
        return cls(**given) if given else None
