"""The Slurm job that this program runs in: whether it is what was asked for, its end, and its steps."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from relay.base.errors import UserError
from relay.slurm import commands
from relay.spec.job import Job

END = "SLURM_JOB_END_TIME"


def check(job: Job, granted: Mapping[str, str]) -> None:
    """Raises UserError, with both numbers, where Slurm granted another shape than the job declares.

    `granted` is what `scontrol show job` says. Snakemake shrinks a job in silence to fit `--resources` or `--cores`,
    and sites have filters of their own. More than was asked for (whole cores, whole nodes) is no fault; what this
    Slurm does not tell cannot be compared.
    """
    asked = {"nodes": job.nodes, "tasks": job.tasks, "CPUs of a task": job.cpus_per_task}
    asked |= {"memory_mb of a node": job.memory_mb, "GPUs of a node": job.gpus_per_node}
    asked |= {"CPUs in all": job.tasks * job.cpus_per_task, "memory_mb in all": job.nodes * job.memory_mb}
    found = _found(granted)
    wrong = [
        f"{name}: {found[name]}, the run declares {value}"
        for name, value in asked.items()
        if _short(found, name, value)
    ]
    if wrong:
        raise UserError(
            f"job {granted.get('JobId')}: {'; '.join(wrong)} (Snakemake's --resources, --cores or --set-resources, or "
            "the site, changed what was asked for)"
        )


def _short(found: Mapping[str, int | None], name: str, declared: int) -> bool:
    value = found[name]
    exact = name in ("nodes", "tasks")  # the shape itself
    return value is not None and (value != declared if exact else value < declared)


def _found(granted: Mapping[str, str]) -> dict[str, int | None]:
    """The numbers in Slurm's words, None for what it does not tell: of the request, and of what was allocated."""
    allocated = dict(part.split("=", 1) for part in _allocated(granted).split(",") if "=" in part)
    return {
        "nodes": _number(granted.get("NumNodes", "").split("-")[0]),
        "tasks": _number(granted.get("NumTasks", "")),
        "CPUs of a task": _number(granted.get("CPUs/Task", "")),
        "memory_mb of a node": _megabytes(granted.get("MinMemoryNode", "")),
        "GPUs of a node": _gpus(granted.get("TresPerNode", "")),
        "CPUs in all": _number(allocated.get("cpu", "")),
        "memory_mb in all": _megabytes(allocated.get("mem", "")),
    }


def _allocated(granted: Mapping[str, str]) -> str:
    """What was allocated: AllocTRES from 23.02 on, TRES before."""
    return granted.get("AllocTRES") or granted.get("TRES") or ""


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _megabytes(text: str) -> int | None:
    """Slurm's memory, such as 4000M, 62.50G or 8000, in its own MB of 1,024 KB; 0, all of the node, tells nothing."""
    match = re.fullmatch(r"([0-9.]+)([KMGT]?)", text)
    if match is None or float(match[1]) == 0:
        return None
    units = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
    return round(float(match[1]) * units[match[2]])


def _gpus(text: str) -> int | None:
    """The GPUs of a node in Slurm's words: gres:gpu:a100:4, gres/gpu:4, gpu:2; 0 where no resource is named."""
    gpus = [part.split("(")[0] for part in text.split(",") if "gpu" in part]
    if not gpus:
        return 0
    last = gpus[0].split(":")[-1]
    return int(last) if last.isdigit() else 1


def end_variables(job: Job) -> dict[str, str]:
    """When this job ends, in Unix seconds: Slurm 22.05 does not tell its steps."""
    if END in os.environ:
        return {}
    try:
        end = commands.end_time(os.environ["SLURM_JOB_ID"])
    except UserError:  # a busy controller: the declared time, counted from now, is a little late
        end = None
    return {END: str(int(end or time.time() + job.minutes * 60))}


def srun(job: Job, tasks_per_node: int, cpus_per_task: int) -> list[str]:
    """The start of a step's command line on all nodes of the job. Everything is said again: the executor strips what
    the job's steps would inherit, and from Slurm 22.05 on a step does not inherit --cpus-per-task.
    """
    words = ["srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes * tasks_per_node}"]
    words += [f"--ntasks-per-node={tasks_per_node}", f"--cpus-per-task={cpus_per_task}"]
    # Ranks of a node are neighbours, one's end is everybody's, and each sees all of the node's GPUs, which NCCL needs.
    words += ["--distribution=block", "--kill-on-bad-exit=1"]
    words += ["--cpu-bind=cores"] if job.confined else []
    # No --gpu-bind=none: it takes CUDA_VISIBLE_DEVICES away, and with it other jobs' GPUs come into sight.
    return [*words, *([job.gpus_flag] if job.gpus_flag else [])]
