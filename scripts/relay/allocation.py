"""The Slurm job that this program runs in: whether it is what was asked for, its end, and its steps."""

from __future__ import annotations

import os
from collections.abc import Mapping

from relay import slurm
from relay.errors import UserError
from relay.job import Job

END = "SLURM_JOB_END_TIME"


def check(job: Job, granted: Mapping[str, str]) -> None:
    """Raises UserError, with both numbers, where Slurm granted another shape than the job declares.

    `granted` is what `scontrol show job` says. Snakemake shrinks a job in silence to fit `--resources` or `--cores`.
    """
    asked = {"NumNodes": job.nodes, "NumTasks": job.tasks, "CPUs/Task": job.cpus_per_task}
    asked |= {"memory_mb of a node": job.memory_mb, "GPUs of a node": job.gpus_per_node}
    found: dict[str, int] = {name: int(granted[name].split("-")[0]) for name in ("NumNodes", "NumTasks", "CPUs/Task")}
    found["memory_mb of a node"] = _megabytes(granted.get("MinMemoryNode", "0"))
    found["GPUs of a node"] = _count(granted.get("TresPerNode", ""))
    wrong = [
        f"{name} is {found[name]}, the run declares {value}" for name, value in asked.items() if found[name] != value
    ]
    if wrong:
        raise UserError(
            f"job {granted.get('JobId')}: {'; '.join(wrong)} (Snakemake's --resources, --cores or --set-resources, or "
            "the site, changed what was asked for)"
        )


def _megabytes(text: str) -> int:
    """Slurm's memory, such as 4000M, 62.50G or 8000, in its own MB of 1,024 KB."""
    units = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
    return round(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else round(float(text or 0))


def _count(text: str) -> int:
    """The number of GPUs in Slurm's words: gres:gpu:a100:4, gres/gpu:4, gpu:2."""
    gpus = [part.split("(")[0] for part in text.split(",") if "gpu" in part]
    last = gpus[0].split(":")[-1] if gpus else "0"
    return int(last) if last.isdigit() else 1


def end_variables(job: Job) -> dict[str, str]:
    """When this job ends, in Unix seconds: Slurm 22.05 does not tell its steps."""
    if END in os.environ:
        return {}
    end = slurm.end_time(os.environ["SLURM_JOB_ID"])
    return {END: str(int(end))} if end else {}


def srun(job: Job, tasks_per_node: int, cpus_per_task: int) -> list[str]:
    """The start of a step's command line on all nodes of the job. Everything is said again: the executor strips what
    the job's steps would inherit, and from Slurm 22.05 on a step does not inherit --cpus-per-task.
    """
    words = ["srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes * tasks_per_node}"]
    words += [f"--ntasks-per-node={tasks_per_node}", f"--cpus-per-task={cpus_per_task}"]
    # Ranks of a node are neighbours, one's end is everybody's, and each sees all of the node's GPUs, which NCCL needs.
    words += ["--distribution=block", "--kill-on-bad-exit=1"]
    return [*words, *([job.gpus_flag, "--gpu-bind=none"] if job.gpus_flag else [])]
