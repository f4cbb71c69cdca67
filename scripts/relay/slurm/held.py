"""The allocation that a driver itself runs in: a shell from `salloc` or `srun --pty`, or a batch script."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from relay.base.clock import duration
from relay.base.errors import UserError
from relay.slurm import allocation, commands
from relay.spec.job import Job
from relay.spec.labels import counted
from relay.spec.setting import Shape

# Kept free before the allocation's end, for trainings that save: at most this, at most a tenth of what is left.
LAST_SECONDS, LAST_SHARE = 120.0, 0.1


@dataclass(frozen=True, kw_only=True)
class Held:
    """What an allocation has, and how long.

    `cpus` are those of its smallest node. `gpus` and `memory_mb` are of each node, None where Slurm does not tell. On
    nodes that it has alone, all GPUs are its own, whatever was asked for.
    `ends_at` is in seconds since 1970, None without a limit. `inside`: this process runs on one of its nodes, as
    that of `srun --pty`; a shell of `salloc` is still on the login node, unless the site has arranged it otherwise.
    """

    job_id: str
    nodes: int
    cpus: int
    gpus: int | None
    memory_mb: int | None
    ends_at: float | None
    inside: bool
    began: float = field(default_factory=time.time)

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Held | None:
        """The allocation of this process; None outside of one, and where Slurm does not say what it has.

        A shell, as of tmux, keeps the variables of an allocation that is over.
        """
        job_id, cpus = (environment.get(f"SLURM_JOB_{name}", "") for name in ("ID", "CPUS_PER_NODE"))
        each = [int(count) for count in re.findall(r"(?:^|,)(\d+)", cpus)]  # 8(x2),4
        if not (job_id and each):
            return None
        nodes = int(environment.get("SLURM_JOB_NUM_NODES", "1"))
        shown: Mapping[str, str] = {}
        with suppress(UserError):  # Slurm's commands are not on every node
            if commands.is_over(job_id):
                return None
            shown = commands.show_job(job_id, tries=1)
        gpus, memory_mb = allocation.of_each_node(shown)
        end = environment.get(allocation.END)
        return cls(
            job_id=job_id,
            nodes=nodes,
            cpus=min(each),
            gpus=None if allocation.shares_nodes(shown) is False else gpus,
            memory_mb=memory_mb,
            ends_at=float(end) if end else allocation.waited(shown).get("ends"),
            inside="SLURMD_NODENAME" in environment,
        )

    @property
    def words(self) -> str:
        """What it has, in a line."""
        parts = [counted(self.nodes, "node"), counted(self.cpus, "CPU")]
        parts += [counted(self.gpus, "GPU")] if self.gpus else []
        parts += [f"{self.memory_mb:,} MB"] if self.memory_mb else []
        each = " on each" if self.nodes > 1 else ""
        left = "" if self.ends_at is None else f", {duration(max(0.0, self.ends_at - time.time()))} left"
        return f"allocation {self.job_id}: {', '.join(parts)}{each}{left}"

    @property
    def elsewhere(self) -> str:
        """Where commands have to be given that run something; '' where this is the place."""
        shell = f"srun --overlap --nodes=1 --ntasks=1 --cpus-per-task={self.cpus} --pty bash -i"
        return "" if self.inside else f"allocation {self.job_id}: this shell is not on its nodes; first give: {shell}"

    @property
    def seconds_of_work(self) -> float:
        """How long jobs may still run, so that trainings can save before the allocation's end."""
        if self.ends_at is None:
            return math.inf
        left = self.ends_at - time.time()
        return left - min(LAST_SECONDS, LAST_SHARE * (self.ends_at - self.began))

    def bounded(self, cpus: int, gpus: Callable[[], int] | int) -> tuple[int, Callable[[], int]]:
        """How many CPUs and GPUs of a node may be planned with, of what this process sees."""

        def of_node() -> int:
            seen = gpus if isinstance(gpus, int) else gpus()
            return seen if self.gpus is None else min(seen, self.gpus)

        return (min(cpus, self.cpus), of_node) if self.inside else (self.cpus, lambda: self.gpus or 0)

    def job(self, shape: Shape, minutes: int, environment: dict[str, Any]) -> Job | None:
        """Where processes of this shape are started as steps of the allocation; None where this node starts them."""
        if shape.nodes == 1 and shape.launcher != "srun":
            return None
        tasks = shape.processes_per_node if shape.launcher == "srun" else 1
        return Job(
            nodes=shape.nodes,
            tasks_per_node=tasks,
            cpus_per_task=shape.cpus_per_node // tasks,
            memory_mb=None,
            gpus_per_node=shape.gpus_per_node,
            minutes=minutes,
            held=True,
            environment=environment,
        )
