"""The Slurm job that this program runs in: a check of what was granted, the time of its end, and its steps."""

import os
import re
import time
from collections.abc import Mapping

from relay.base.errors import UserError
from relay.chain.slurm import unix_seconds
from relay.spec.job import Job

END = "SLURM_JOB_END_TIME"
SHAPE = ("nodes", "tasks")
IN_ALL = ("nodes", "CPUs in all")  # of an allocation that is held: its steps say what each of them takes


def check(job: Job, granted: Mapping[str, str]) -> None:
    """Raise UserError, with both numbers, where Slurm granted less than the job declares, or another shape.

    `granted` is the output of `scontrol show job`. The two can differ, because Snakemake shrinks a job to fit
    `--resources` or `--cores` without a message, and because sites have filters. More CPUs or memory than declared
    (whole cores, whole nodes) is no error. Values that this version of Slurm does not show are not compared, nor is
    memory where the job asks for none.
    """
    declared = {"nodes": job.nodes, "tasks": job.tasks, "CPUs of a task": job.cpus_per_task}
    declared |= {"memory_mb of a node": job.memory_mb or 0, "GPUs of a node": job.gpus_per_node}
    declared |= {"CPUs in all": job.tasks * job.cpus_per_task, "memory_mb in all": job.nodes * (job.memory_mb or 0)}
    numbers = _numbers(granted)
    wrong = [
        f"{name}: {numbers[name]}, the run declares {value}"
        for name, value in declared.items()
        if name in IN_ALL or not job.held
        if _differs(numbers, name, value, exact=name in SHAPE and not job.held)
    ]
    if wrong:
        raise UserError(
            f"job {granted.get('JobId')}: {'; '.join(wrong)} (Snakemake's --resources, --cores or --set-resources, or "
            "the site, changed what was asked for)"
        )


def _differs(numbers: Mapping[str, int | None], name: str, declared: int, *, exact: bool) -> bool:
    value = numbers[name]  # a job's shape must be equal; of everything else, more is allowed
    return value is not None and (value != declared if exact else value < declared)


def of_each_node(granted: Mapping[str, str]) -> tuple[int | None, int | None]:
    """GPUs and MB of memory of each node of an allocation, from `scontrol show job`; None where it does not say."""
    numbers, in_all = _numbers(granted), re.search(r"gres/gpu=(\d+)", _allocated(granted))
    nodes = numbers["nodes"] or 1
    memory_mb = numbers["memory_mb in all"]
    gpus = int(in_all[1]) // nodes if in_all else numbers["GPUs of a node"] if granted else None
    return gpus, memory_mb // nodes if memory_mb else None


def _numbers(granted: Mapping[str, str]) -> dict[str, int | None]:
    """The numbers of the request and of the allocation; None for those that Slurm does not show."""
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
    """What was allocated. Slurm calls it AllocTRES from version 23.02 on, and TRES before."""
    return granted.get("AllocTRES") or granted.get("TRES") or ""


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _megabytes(text: str) -> int | None:
    """Slurm's memory, such as 4000M, 62.50G or 8000, in MB of 1,024 KB. None for 0, which means all of the node's."""
    match = re.fullmatch(r"([0-9.]+)([KMGT]?)", text)
    if match is None or float(match[1]) == 0:
        return None
    units = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
    return round(float(match[1]) * units[match[2]])


def _gpus(text: str) -> int | None:
    """The number of GPUs in a text such as gres:gpu:a100:4, gres/gpu=4 or gpu:2; 0 where it names no GPU."""
    gpus = [part.split("(")[0] for part in text.split(",") if "gpu" in part]
    if not gpus:
        return 0
    last = re.split("[:=]", gpus[0])[-1]
    return int(last) if last.isdigit() else 1


def waited(shown: Mapping[str, str]) -> dict[str, float]:
    """When a job was `submitted` and `started`, and `ends`, in seconds since 1970, as far as `show_job` tells."""
    names = {"submitted": "SubmitTime", "started": "StartTime", "ends": "EndTime"}
    times = {name: unix_seconds(shown.get(key, "")) for name, key in names.items()}
    return {name: seconds for name, seconds in times.items() if seconds is not None}


def shares_nodes(shown: Mapping[str, str]) -> bool | None:
    """Whether other jobs may run on a job's nodes, as `show_job` tells; None where this version of Slurm does not."""
    sharing = shown.get("OverSubscribe")
    return None if sharing is None else sharing != "NO"


def end_variables(job: Job, shown: Mapping[str, str]) -> dict[str, str]:
    """SLURM_JOB_END_TIME, in Unix seconds, for the job's steps; empty where it is set. Slurm 22.05 does not set it.

    `shown` is the output of `scontrol show job`.
    """
    if END in os.environ:
        return {}
    end = waited(shown).get("ends")  # else the declared time from now on, which is a little too late
    return {END: str(int(end or time.time() + job.minutes * 60))}


def srun(job: Job, tasks_per_node: int, cpus_per_task: int) -> list[str]:
    """The start of the command line of a step on all nodes of the job.

    It repeats the job's whole request, for two reasons. Snakemake's executor removes the variables that steps would
    inherit it from, and from Slurm 22.05 on, steps do not inherit --cpus-per-task.
    """
    words = ["srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes * tasks_per_node}"]
    words += [f"--ntasks-per-node={tasks_per_node}", f"--cpus-per-task={cpus_per_task}"]
    # Block distribution gives neighbouring ranks to each node. If one task fails, the others are ended too.
    words += ["--distribution=block", "--kill-on-bad-exit=1"]
    words += ["--cpu-bind=cores"] if job.confined else []
    words += ["--overlap"] if job.held else []  # the shell that asks for it is a step, with all that there is
    # Without --gpu-bind, each task sees all of its node's GPUs, as NCCL needs. --gpu-bind=none would unset
    # CUDA_VISIBLE_DEVICES, so that tasks would also see the GPUs of other jobs.
    return [*words, *([job.step_gpus] if job.step_gpus else [])]
