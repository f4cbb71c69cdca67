"""Checks of what the job was given: nodes, processes, CPUs, threads, memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from relay.preflight.findings import Facts, Finding, check, fine, listed, note, stop, warn, who


@check("nodes")
def nodes(facts: Facts) -> Finding | None:
    """All ranks on one host although several nodes were asked for, and the like."""
    if not facts.complete:
        return None
    declared, names = facts.run["nodes"], list(facts.nodes)
    if len(names) == declared:
        return fine(f"{declared} as declared: {listed(names)}")
    return stop(
        f"{len(facts.ranks)} processes are on {len(names)} nodes ({listed(names)}), the run declares {declared}",
        f"start them with `srun --nodes={declared} --ntasks-per-node=…`; a plain command, or a torchrun without a "
        "rendezvous, stays on the first node",
    )


@check("processes")
def processes(facts: Facts) -> Finding | None:
    """Too many or too few processes, on all nodes or on one: two tasks of a torchrun start each process twice."""
    if not facts.complete:
        return None
    per_node = facts.run["processes_per_node"]
    wrong = {node: len(ranks) for node, ranks in facts.nodes.items() if len(ranks) != per_node}
    if len(facts.ranks) == facts.run["world_size"] and not wrong:
        return fine(f"{len(facts.ranks)}, {per_node} on each node")
    counts = ", ".join(f"{count} on {node}" for node, count in wrong.items())
    return stop(
        f"{len(facts.ranks)} processes ({counts}), the run declares {facts.run['world_size']}, {per_node} on each node",
        "with torchrun: one Slurm task for each node (--ntasks-per-node=1), which starts the processes; with srun: one "
        f"task for each process (--ntasks-per-node={per_node})",
    )


@check("CPUs")
def cpus(facts: Facts) -> Finding | None:
    """Fewer CPUs than a process needs: all it asked for where the site confines it, else those of its threads."""
    least = facts.run["cpus_per_task"] if facts.confined else facts.run["threads"]
    masks = [rank["affinity"] for rank in facts.ranks]
    if None in masks:
        return None
    short = [rank for rank in facts.ranks if len(rank["affinity"]) < least]
    if not short:
        return fine(f"{min(map(len, masks))} or more for each process, {least} needed")
    allowed, binding = short[0]["affinity"], short[0]["environment"].get("OMP_PROC_BIND", "false")
    if len(allowed) == 1 and binding.lower() != "false":
        remedy = (
            f"OMP_PROC_BIND={binding} was set for the launcher too, and binds what loads torch first, with all its "
            "children, to one core: set it for the training processes alone"
        )
    else:
        remedy = f"srun does not inherit --cpus-per-task (since Slurm 22.05): give `srun --cpus-per-task={least}`"
    return stop(f"{who(short[0])} may use {len(allowed)} CPUs ({listed(allowed)}), it needs {least}", remedy)


@check("shared CPUs")
def shared_cpus(facts: Facts) -> Finding | None:
    """Processes of a node whose affinity masks overlap."""
    for ranks in facts.nodes.values():
        if any(rank["affinity"] is None for rank in ranks):
            return None
        for one, other in combinations(ranks, 2):
            both = sorted(set(one["affinity"]) & set(other["affinity"]))
            if both and facts.confined:
                return stop(
                    f"{who(one)} and rank {other['rank']} may both use CPUs {listed(both)}; the site confines CPUs",
                    "each process is given CPUs of its own by `srun --cpu-bind=cores`, which needs Slurm's "
                    "TaskPlugin=task/affinity, or a part of a mask that has enough for all: this one has not. Say "
                    "`confines_cpus: false` in the site's file, or ask your site for task/affinity",
                )
        together = set().union(*(rank["affinity"] for rank in ranks))
        threads = facts.run["threads"] * len(ranks)
        if threads > len(together):
            return note(
                f"{len(ranks)} processes of {facts.run['threads']} threads share {len(together)} CPUs on "
                f"{ranks[0]['node']}",
                "they wait for each other: give fewer processes, fewer threads or more CPUs to measure speed",
            )
    return fine("none too few for all threads")


@check("OMP_NUM_THREADS")
def openmp_threads(facts: Facts) -> Finding | None:
    """More OpenMP threads than CPUs, or others than declared."""
    for rank in facts.ranks:
        text = rank["environment"].get("OMP_NUM_THREADS", "")
        threads = int(text) if text.isdigit() else None
        observation = f"OMP_NUM_THREADS is '{text}' for {who(rank)}"
        if threads and rank["affinity"] is not None and threads > len(rank["affinity"]):
            return stop(
                f"{observation}, which may use {len(rank['affinity'])} CPUs",
                f"set it to the CPUs of one process ({facts.run['threads']}), not to those of the node or the job",
            )
        if threads != facts.run["threads"]:
            return warn(
                f"{observation}, the run declares {facts.run['threads']} threads",
                "libraries beside torch follow the variable: set it to the run's threads",
            )
    return fine(f"{facts.run['threads']} for each process")


@check("OMP_PROC_BIND")
def openmp_binding(facts: Facts) -> Finding | None:
    """What loading torch left of the affinity mask, where OpenMP binds threads."""
    bound = [
        rank
        for rank in facts.ranks
        if rank.get("bound_affinity") and rank["affinity"] and len(rank["bound_affinity"]) < len(rank["affinity"])
    ]
    if not bound:
        return None
    first, binding = bound[0], bound[0]["environment"].get("OMP_PROC_BIND")
    for one, other in combinations(bound, 2):
        if one["node"] == other["node"] and one["bound_affinity"] == other["bound_affinity"]:
            return stop(
                f"OMP_PROC_BIND={binding} bound both {who(one)} and rank {other['rank']} to CPU "
                f"{listed(one['bound_affinity'])}",
                "OpenMP binds within the mask, and theirs is the same: give each process a mask of its own, or leave "
                "`openmp` out of the site's file (OMP_PROC_BIND=false)",
            )
    fault = f"loading torch left {who(first)} {len(first['bound_affinity'])} of {len(first['affinity'])} CPUs"
    if facts.run["data_workers"]:
        return warn(f"{fault}, which its {facts.run['data_workers']} data workers share", "set OMP_PROC_BIND=false")
    return note(f"{fault} for its first thread (OMP_PROC_BIND={binding})", "children of the process inherit that")


@check("memory")
def memory(facts: Facts) -> Finding | None:
    """Less memory on a node than the job declares."""
    declared_mb = facts.job.get("memory_mb")
    if declared_mb is None:
        return None
    for rank in facts.ranks:
        limit = rank.get("memory_limit_mb")
        if facts.confined and limit is not None and limit < declared_mb:
            return stop(
                f"the control group allows {who(rank)} {limit} MB, the job declares {declared_mb} MB for each node",
                f"ask Slurm for --mem={declared_mb}M, and give srun no smaller --mem or --mem-per-cpu",
            )
        if rank["node_memory_mb"] < declared_mb:
            return note(
                f"{rank['node']} has {rank['node_memory_mb']} MB, the job declares {declared_mb} MB",
                "ask for less, or correct the site's file: Slurm counts memory that is not there",
            )
    return fine(f"{declared_mb} MB for each node")


# What the job declares, and Slurm's variable that says what was granted.
GRANTED = {"nodes": "SLURM_JOB_NUM_NODES", "memory_mb": "SLURM_MEM_PER_NODE", "cpus_per_task": "SLURM_CPUS_PER_TASK"}


@check("Slurm's grant")
def grant(facts: Facts) -> Finding | None:
    """What Slurm says it granted, beside what the job declares."""
    if not facts.job or not any(rank["slurm"] for rank in facts.ranks):
        return None
    variables = {name: variable for name, variable in GRANTED.items() if facts.job[name] is not None}
    for rank in facts.ranks:
        wrong = [
            f"{name} {granted} ({variable})"
            for name, variable in variables.items()
            if (granted := rank["slurm"].get(variable, "")).isdigit() and int(granted) < facts.job[name]
        ]
        gpus = visible_gpus(rank)
        if facts.job["gpus_per_node"] and gpus is not None and gpus < facts.job["gpus_per_node"]:
            wrong.append(f"gpus_per_node {gpus} (CUDA_VISIBLE_DEVICES)")
        if wrong:
            declared = ", ".join(f"{name} {facts.job[name]}" for name in (*variables, "gpus_per_node"))
            return stop(
                f"{who(rank)} got {', '.join(wrong)}; the job declares {declared}",
                "look for --resources, --cores or --set-resources on Snakemake's command line: they shrink jobs",
            )
    return fine("as declared")


def visible_gpus(rank: Mapping[str, Any]) -> int | None:
    """How many GPUs CUDA_VISIBLE_DEVICES names; None where it is not set."""
    text = rank["environment"].get("CUDA_VISIBLE_DEVICES")
    return None if text is None else len([name for name in text.split(",") if name])
