"""Checks of what the job was given: nodes, processes, CPUs, threads, memory."""

from collections.abc import Iterator
from itertools import combinations

from relay.preflight.findings import Facts, Finding, check, listed, note, stop, warn, who

LEAST_SHARED_BYTES = 10**9  # containers have 64 MB where nobody asks for more
LEAST_OPEN_FILES = 2048  # each batch that data workers have ready holds some open; 1024 is many systems' default
LEAST_LOCKED_BYTES = 10**9


@check("nodes")
def nodes(facts: Facts) -> Iterator[Finding]:
    """All ranks on one host although several nodes were asked for, and the like."""
    declared, names = facts.run["nodes"], list(facts.nodes)
    if facts.complete and len(names) != declared:
        yield stop(
            f"{len(facts.ranks)} processes are on {len(names)} nodes ({listed(names)}), the run declares {declared}",
            f"start them with `srun --nodes={declared} --ntasks-per-node=…`; a plain command, or a torchrun without a "
            "rendezvous, stays on the first node",
        )


@check("processes")
def processes(facts: Facts) -> Iterator[Finding]:
    """Too many or too few processes, on all nodes or on one: two tasks of a torchrun start each process twice."""
    per_node = facts.run["processes_per_node"]
    wrong = {node: len(ranks) for node, ranks in facts.nodes.items() if len(ranks) != per_node}
    if facts.complete and (wrong or len(facts.ranks) != facts.run["world_size"]):
        counts = ", ".join(f"{count} on {node}" for node, count in wrong.items())
        yield stop(
            f"{len(facts.ranks)} processes ({counts}), the run declares {facts.run['world_size']}, {per_node} on each "
            "node",
            "with torchrun: one Slurm task for each node (--ntasks-per-node=1), which starts the processes; with srun: "
            f"one task for each process (--ntasks-per-node={per_node})",
        )


@check("CPUs")
def cpus(facts: Facts) -> Iterator[Finding]:
    """Fewer CPUs than a process needs: all it asked for where the site confines it, else those of its threads."""
    least = facts.run["cpus_per_task"] if facts.confined else facts.run["threads"]
    for rank in facts.ranks:
        allowed, binding = rank["affinity"], rank["environment"].get("OMP_PROC_BIND", "false")
        if len(allowed) >= least:
            continue
        remedy = f"srun does not inherit --cpus-per-task (since Slurm 22.05): give `srun --cpus-per-task={least}`"
        if len(allowed) == 1 and binding.lower() != "false":
            remedy = (
                f"OMP_PROC_BIND={binding} was set for the launcher too, and binds what loads torch first, with all its "
                "children, to one core: set it for the training processes alone"
            )
        yield stop(f"{who(rank)} may use {len(allowed)} CPUs ({listed(allowed)}), it needs {least}", remedy)


@check("shared CPUs")
def shared_cpus(facts: Facts) -> Iterator[Finding]:
    """Processes of a node whose affinity masks overlap."""
    for node, ranks in facts.nodes.items():
        for one, other in combinations(ranks, 2) if facts.confined else ():
            if both := sorted(set(one["affinity"]) & set(other["affinity"])):
                yield stop(
                    f"{who(one)} and rank {other['rank']} may both use CPUs {listed(both)}; the site confines CPUs",
                    "each process is given CPUs of its own by `srun --cpu-bind=cores`, which needs Slurm's "
                    "TaskPlugin=task/affinity, or a part of a mask that has enough for all: this one has not. Say "
                    "`confines_cpus: false` in the site's file, or ask your site for task/affinity",
                )
        threads, together = facts.run["threads"], set().union(*(rank["affinity"] for rank in ranks))
        if threads * len(ranks) > len(together):
            yield note(
                f"{len(ranks)} processes of {threads} threads share {len(together)} CPUs on {node}",
                "they wait for each other: give fewer processes, fewer threads or more CPUs to measure speed",
            )


@check("OMP_PROC_BIND")
def openmp_binding(facts: Facts) -> Iterator[Finding]:
    """What loading torch left of the affinity mask, where OpenMP binds threads."""
    ranks = facts.telling("bound_affinity")
    bound = [rank for rank in ranks if len(rank["bound_affinity"]) < len(rank["affinity"])]
    for one, other in combinations(bound, 2):
        if one["node"] == other["node"] and one["bound_affinity"] == other["bound_affinity"]:
            yield stop(
                f"OMP_PROC_BIND={one['environment'].get('OMP_PROC_BIND')} bound both {who(one)} and rank "
                f"{other['rank']} to CPU {listed(one['bound_affinity'])}",
                "OpenMP binds within the mask, and theirs is the same: give each process a mask of its own, or leave "
                "`openmp` out of the site's file (OMP_PROC_BIND=false)",
            )
    for rank in bound:
        fault = f"loading torch left {who(rank)} {len(rank['bound_affinity'])} of {len(rank['affinity'])} CPUs"
        if workers := facts.run["data_workers"]:
            yield warn(f"{fault}, which its {workers} data workers share", "set OMP_PROC_BIND=false")
        else:
            binding = rank["environment"].get("OMP_PROC_BIND")
            remedy = "children of the process inherit that"
            yield note(f"{fault} for its first thread (OMP_PROC_BIND={binding})", remedy)


@check("memory")
def memory(facts: Facts) -> Iterator[Finding]:
    """Less memory on a node than the job declares."""
    declared_mb = facts.job.get("memory_mb")
    for rank in facts.ranks if declared_mb is not None else ():
        limit_mb = rank.get("memory_limit_mb")
        if facts.confined and limit_mb is not None and limit_mb < declared_mb:
            yield stop(
                f"the control group allows {who(rank)} {limit_mb} MB, the job declares {declared_mb} MB for each node",
                f"ask Slurm for --mem={declared_mb}M, and give srun no smaller --mem or --mem-per-cpu",
            )
        if rank["node_memory_mb"] < declared_mb:
            yield note(
                f"{rank['node']} has {rank['node_memory_mb']} MB, the job declares {declared_mb} MB",
                "ask for less, or correct the site's file: Slurm counts memory that is not there",
            )


@check("shared memory")
def shared_memory(facts: Facts) -> Iterator[Finding]:
    """A small or full /dev/shm, through which data workers hand over batches, and NCCL's ranks of a node talk."""
    workers, ranks = facts.run["data_workers"], facts.run["processes_per_node"]
    for rank in facts.telling("shared_memory_bytes"):
        free = rank["shared_memory_bytes"]
        if free < LEAST_SHARED_BYTES and (workers or (facts.run["backend"] == "nccl" and ranks > 1)):
            yield warn(
                f"/dev/shm on {rank['node']} has {free / 1e6:.0f} MB free: processes may end with a bus error",
                "enlarge it (a container's --shm-size), remove what ended jobs have left there, or take fewer "
                "data_workers",
            )


@check("open files")
def open_files(facts: Facts) -> Iterator[Finding]:
    """A low limit on open files beside data workers (`received 0 items of ancdata`)."""
    for rank in facts.telling("limits") if facts.run["data_workers"] else ():
        most = rank["limits"]["open_files"]
        if most is not None and most < LEAST_OPEN_FILES:
            yield note(
                f"{who(rank)} may open {most} files; batches of data workers may need more",
                "raise it before you submit jobs, which take it over (`ulimit -n`, as far as `ulimit -Hn` allows)",
            )


@check("locked memory")
def locked_memory(facts: Facts) -> Iterator[Finding]:
    """A limit on locked memory, which NCCL needs for InfiniBand (`ibv_reg_mr failed: Cannot allocate memory`)."""
    for rank in facts.telling("limits") if facts.run["backend"] == "nccl" and facts.run["nodes"] > 1 else ():
        most = rank["limits"]["locked_memory_bytes"]
        if most is not None and most < LEAST_LOCKED_BYTES and rank["infiniband"]:
            yield warn(
                f"{who(rank)} may lock {most / 1e6:.1f} MB of memory: NCCL may fail on InfiniBand",
                "`ulimit -l` has to be unlimited in jobs: ask your site (slurmd's LimitMEMLOCK, and "
                "PropagateResourceLimitsExcept=MEMLOCK)",
            )
