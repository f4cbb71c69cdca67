"""What jobs of a shape ask a site for: nodes, tasks, CPUs, memory, GPUs; also as Snakemake's resources."""

import math
from collections.abc import Collection
from typing import Any

from relay.config.config import Config
from relay.slurm.batch_script import asked
from relay.slurm.counters import counters
from relay.spec.job import Job
from relay.spec.setting import Shape
from relay.spec.site import Site
from relay.spec.site_blocks import Partition

# All keys that `resources` may return, besides the counters of a user's limits.
RESOURCES = (
    *("mpi", "nodes", "tasks", "cpus_per_task", "mem_mb", "runtime", "slurm_extra"),
    *("slurm_partition", "slurm_account", "qos", "constraint", "gres", "tasks_per_gpu"),
)


def partition_for(shape: Shape, site: Site, config: Config) -> tuple[Partition | None, str]:
    """The partition for jobs of this shape and '', or None and the reason why no partition fits."""
    return site.partition_for(
        shape.device,
        shape.gpus_per_node,
        shape.nodes,
        config.runtime_minutes,
        cpus_per_node=shape.cpus_per_node,
        memory_mb=config.memory_mb_per_node or 0,
    )


def job(shape: Shape, site: Site, config: Config, minutes: int, environment: dict[str, Any]) -> Job:
    """What a job of this shape asks for. `minutes` is the time limit, `environment` that of the job's stack."""
    partition, reason = partition_for(shape, site, config)
    assert partition is not None, reason  # the planner skips settings that fit into no partition
    gpus, cpus = shape.gpus_per_node, shape.cpus_per_node
    # With srun every process is a task. Otherwise one task starts all processes of its node, and needs all their CPUs.
    tasks_per_node = shape.processes_per_node if shape.launcher == "srun" else 1
    memory_mb = config.memory_mb_per_node or site.memory_mb(gpus, cpus, partition)
    return Job(
        nodes=shape.nodes,
        tasks_per_node=tasks_per_node,
        cpus_per_task=cpus // tasks_per_node,
        memory_mb=memory_mb if partition.asks_memory else None,
        gpus_per_node=gpus,
        gpu_name=partition.gpu_name,
        whole_node_gpus=partition.gpus_per_node if partition.whole_nodes and gpus else None,
        gpu_request=site.gpu_request,
        minutes=minutes,
        partition=partition.name,
        account=site.account,
        qos=site.qos,
        constraint=site.constraint,
        confined=site.confines_cpus,
        node_disk=site.node_disk,
        network_interface=site.network_interface,
        openmp=site.openmp.model_dump(exclude_none=True),
        environment=environment,
    )


def resources(job: Job, site: Site, left_out: Collection[str] = ()) -> dict[str, Any]:
    """The job as resources of a Snakemake rule, for the Slurm executor. It is not to run on the nodes `left_out`.

    With an empty `mpi`, the executor runs the rule's shell once, on the first node, and the shell starts the job's
    steps. Without it, the executor would start the shell as a step of one task, in which no other step can start.

    The executor takes `--gres` as a resource of its own only. It then asks for no number of tasks in all, which follows
    from the nodes and the tasks of each, and would ask for tasks of each GPU without `tasks_per_gpu`.
    A `mem_mb` of 0 asks for none: for None, Snakemake asks for a default of its own. Else None asks for nothing.
    """
    extra = [f"--ntasks-per-node={job.tasks_per_node}"]
    gres = (job.job_gpus or "").removeprefix("--gres=") if job.gpu_request == "gres" else ""
    extra += [job.job_gpus] if job.job_gpus and not gres else []
    extra += [*site_flags(site), *_excluded(left_out)]
    return {
        "mpi": "",
        "nodes": job.nodes,
        "tasks": job.tasks,
        "cpus_per_task": job.cpus_per_task,
        "mem_mb": job.memory_mb or 0,
        "runtime": job.minutes,
        "slurm_extra": " ".join(extra),
        "slurm_partition": job.partition,
        "slurm_account": job.account,
        "qos": job.qos,
        "constraint": job.constraint,
        "gres": gres or None,
        "tasks_per_gpu": 0 if gres else None,
    }


def site_flags(site: Site) -> list[str]:
    """The flags of sbatch that are the same for every job of the site: its reservation, and its mail."""
    flags = [f"--reservation={site.reservation}"] if site.reservation else []
    flags += [f"--mail-type={','.join(site.mail_type)}"] if site.mail_type else []
    return [*flags, *([f"--mail-user={site.mail_user}"] if site.mail_user else [])]


def sbatch_flags(job: Job, site: Site, left_out: Collection[str] = ()) -> list[str]:
    """The job as flags of sbatch, for asking when it would start, and for batch scripts that this project submits."""
    return [*asked(job, site_flags(site)), *_excluded(left_out)]


def _excluded(nodes: Collection[str]) -> list[str]:
    return [f"--exclude={','.join(nodes)}"] if nodes else []


def charged(shape: Shape, site: Site | None, config: Config) -> dict[str, int]:
    """The CPUs and GPUs that a job of this shape is charged for: more memory than its share counts as that of CPUs.

    A node that it has alone counts in full.
    """
    partition = partition_for(shape, site, config)[0] if site else None
    if partition is None:
        return shape.taken
    taken = partition.taken(shape.nodes, shape.gpus_per_node, shape.cpus_per_node)
    whole, by_memory = partition.memory_mb_per_node if partition.asks_memory else None, 0
    if whole and config.memory_mb_per_node:
        by_memory = shape.nodes * math.ceil(config.memory_mb_per_node * partition.cpus_per_node / whole)
    return {"cpus": max(taken["cpus"], by_memory), "gpus": taken["gpus"]}


def counted(shape: Shape, site: Site, config: Config) -> dict[str, int]:
    """What a job of this shape adds to the counters of a user's limits."""
    partition, reason = partition_for(shape, site, config)
    assert partition is not None, reason
    adds = partition.taken(shape.nodes, shape.gpus_per_node, shape.cpus_per_node)
    return {name: adds[counter.what] for name, counter in counters(site, partition).items()}
