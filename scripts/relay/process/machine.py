"""The machine that this process runs on: a check of what was granted, and the facts to record with the results."""

import ctypes
import os
import platform
import socket
from collections.abc import Sequence
from threading import Thread
from typing import Any

import torch

from relay.base.errors import UserError
from relay.process import cpus, gpus, one_gpu, system
from relay.process.devices import gpu, is_gpu
from relay.process.ranks import Ranks
from relay.spec.arithmetic import without_tensor_cores
from relay.spec.job import Job
from relay.spec.run import Specification
from relay.spec.setting import TF32

# `mallopt` of glibc's malloc.h: from how many bytes on memory is asked of the kernel for one use alone, and how many
# free bytes go back to it. A value is a C int. Before 2.35, glibc refuses more than 32 MiB for the first one.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
MOST_KEPT_BYTES, MOST_OF_OLD_GLIBC = 2**31 - 1, 2**25


def set_threads(threads: int, interop_threads: int) -> None:
    """Set the sizes of PyTorch's thread pools. That of operations at the same time stays as first set."""
    compute_in(threads)
    if torch.get_num_interop_threads() != interop_threads:
        torch.set_num_interop_threads(interop_threads)


def compute_in(threads: int) -> None:
    """Let this thread compute in so many threads. Threads that begin to compute later use one thread each.

    Else those that save, and gloo's, would have OpenMP teams of their own. Where a process has more OpenMP threads than
    CPUs, libgomp lets the members of all its teams sleep where they would wait for each other busily: every step of a
    small transformer took twice as long, from the first save or all-gather to the end.
    """
    torch.get_num_threads()  # a thread takes the number that was set last when it is first asked for its own
    torch.set_num_threads(threads)
    if threads > 1:
        later = Thread(target=torch.set_num_threads, args=(1,))  # of its own, and of those that have not begun
        later.start()
        later.join()


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a step frees, for the next step.

    Else it goes back to the kernel, which clears each page that is used again: a fourth of the time of a LeNet's step
    with a batch of 2,048. Nothing is changed where the environment tells glibc what is wanted, or without glibc.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if change and "glibc.malloc" not in tunables and not any(name.startswith("MALLOC_") for name in os.environ):
        if not change(M_MMAP_THRESHOLD, MOST_KEPT_BYTES):
            change(M_MMAP_THRESHOLD, MOST_OF_OLD_GLIBC)  # the next line ends the growth of what holds so far
        change(M_TRIM_THRESHOLD, MOST_KEPT_BYTES)


def set_precision(precision: str) -> None:
    """Allow TF32 on GPUs for what the precision names, and forbid it for the rest.

    PyTorch's defaults differ: since 1.12, TF32 is off for matrix products and on for convolutions. Both are set here.
    """
    in_tf32 = TF32.get(precision, frozenset())
    torch.backends.cuda.matmul.allow_tf32 = "matmul" in in_tf32
    torch.backends.cudnn.allow_tf32 = "convolution" in in_tf32


def check_precision(run: Specification, precision: str, device: torch.device) -> None:
    """Raise UserError where a GPU would silently compute in fp32 for TF32; say it where a precision is slow there."""
    if not is_gpu(device):
        return
    problem = without_tensor_cores(precision, torch.cuda.get_device_capability(device))
    message = f"{run.kind} {run.id}: {torch.cuda.get_device_name(device)}: {problem}"
    if problem and precision in TF32:
        raise UserError(f"{message}; use fp32")
    if problem:
        print(f"note: {message}", flush=True)


def check_granted(run: Specification, ranks: Ranks, job: Job | None = None) -> None:
    """Raise UserError where processes, nodes, devices, CPUs or memory are not those declared. Collective.

    CPUs and memory of a `job` are checked only where the site confines processes to them. Elsewhere `facts` only
    records the CPUs.
    """
    if ranks.world_size != run.shape.world_size:
        raise UserError(f"run {run.id}: world size is {ranks.world_size}, the run declares {run.shape.world_size}")
    hosts = sorted(set(ranks.gather(socket.gethostname())))
    if len(hosts) != run.shape.nodes:
        raise UserError(
            f"run {run.id}: its processes are on {len(hosts)} nodes ({', '.join(hosts)}), declared {run.shape.nodes}"
        )
    cpus.check(f"run {run.id}", run.shape.threads)
    if run.shape.device == "cuda":
        _check_gpus(run, ranks, confined=job is not None and job.confined)
    if job and job.confined:
        if (own := len(cpus.granted())) < run.shape.cpus_per_task:  # more is no error, because Slurm grants whole cores
            raise UserError(
                f"run {run.id}: cpus_per_task is {run.shape.cpus_per_task}, but the process may use only {own}"
            )
        limit = system.memory_limit_mb()
        if limit is not None and job.memory_mb is not None and limit < job.memory_mb:
            raise UserError(
                f"run {run.id}: {job.memory_mb} MB of memory are declared, but the control group allows only {limit}"
            )


def _check_gpus(run: Specification, ranks: Ranks, *, confined: bool) -> None:
    """Raise UserError where the node's ranks see, or compute on, another number of GPUs than declared. Collective.

    Slurm may show each rank all GPUs of the node or one alone (--gpus-per-task, --gpu-bind), and each rank counts its
    own from 0. So what the ranks of a node see is put together, by the GPUs' UUIDs.
    """
    all_visible = [gpu(index) for index in range(torch.cuda.device_count())]
    gathered = ranks.gather((socket.gethostname(), gpus.uuids(all_visible), gpus.uuids(ranks.devices)))
    if not all(len({*seen} - {""}) == len(seen) > 0 for _, seen, _ in gathered):  # a torch that tells no UUIDs
        visible = used_here = len(all_visible)
    else:
        here = [(seen, used) for host, seen, used in gathered if host == socket.gethostname()]
        visible, used_here = (len({uuid for of_rank in kind for uuid in of_rank}) for kind in zip(*here, strict=True))
    needed = 1 if one_gpu.variables(run.shape) else run.shape.devices_per_node
    node = f"on node {socket.gethostname()}"
    if visible < needed or (confined and visible > needed):
        raise UserError(f"run {run.id}: devices_per_node is {needed}, but {visible} GPUs are visible {node}")
    if used_here < needed:
        raise UserError(
            f"run {run.id}: devices_per_node is {needed}, but its processes {node} compute on {used_here} GPUs, which "
            "they share; ask for GPUs with --gpus-per-node, and bind none to tasks"
        )


def check_threads(what: str, declared: int) -> None:
    """Raise UserError where this process computes in more threads than are declared: its speed would not be theirs."""
    if (threads := torch.get_num_threads()) > declared:
        raise UserError(
            f"{what}: it computes in {threads} threads, and threads is {declared}; leave torch.set_num_threads out of "
            "the strategy, and set `threads` in the config"
        )


def peak_memory_bytes(devices: Sequence[torch.device]) -> int:
    """The most memory this process has used: on the fullest of its GPUs, or, without GPUs, in main memory."""
    if is_gpu(devices[0]):
        return max(torch.cuda.max_memory_allocated(device) for device in devices)
    return system.peak_main_memory_bytes()


def versions(device: torch.device) -> dict[str, str | None]:
    """The versions of Python, torch and the libraries of GPUs; None for what is not there."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # its own class of strings is refused by `weights_only`
        "cuda": torch.version.cuda,
        "nccl": gpus.nccl() if is_gpu(device) else None,
        "driver": system.driver() if is_gpu(device) else None,
    }


def tf32() -> dict[str, bool]:
    """For which operations GPUs may compute in TF32."""
    return {"matmul": torch.backends.cuda.matmul.allow_tf32, "convolution": torch.backends.cudnn.allow_tf32}


def facts(device: torch.device) -> dict[str, Any]:
    """Host, device, versions and numeric settings, to be recorded with the run's results."""
    return {
        **system.facts(),
        "device_name": torch.cuda.get_device_name(device) if is_gpu(device) else system.processor(),
        "versions": versions(device),
        "tf32": tf32(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "affinity": sorted(cpus.granted()),
        "environment": system.recorded_variables() | system.slurm_variables(),
    }
