"""What this process runs on: whether it got what the run declared, and the facts that stand beside every figure."""

from __future__ import annotations

import os
import platform
import resource
import socket
from pathlib import Path
from typing import Any

import torch

from relay.errors import UserError
from relay.ranks import Ranks
from relay.run import Run


def set_threads(threads: int, interop_threads: int) -> None:
    """PyTorch's thread pools, before their first use."""
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(interop_threads)
    # Explicit, because PyTorch's defaults differ: off for matrix products, on for convolutions since 1.12.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_granted(run: Run, ranks: Ranks) -> None:
    """Raises UserError where the processes, devices or CPUs are not those that the run declares, naming both."""
    if ranks.world_size != run.world_size:
        raise UserError(f"run {run.id}: world size is {ranks.world_size}, the run declares {run.world_size}")
    if run.threads > cpus():
        raise UserError(f"run {run.id}: threads is {run.threads}, but the process may use only {cpus()} CPUs")
    if run.device == "cuda":
        needed = run.devices_per_node if run.processes_per_node == 1 else 1
        if torch.cuda.device_count() < needed:
            found = torch.cuda.device_count()
            raise UserError(f"run {run.id}: devices_per_node is {run.devices_per_node}, but {found} GPUs are visible")


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held: of the GPU where it has one, else resident memory of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def facts(device: torch.device) -> dict[str, Any]:
    """Host, device, versions and numeric settings, for the record."""
    cuda = device.type == "cuda"
    return {
        "host": socket.gethostname(),
        "device_name": torch.cuda.get_device_name(device) if cuda else _processor(),
        "cpus": cpus(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        },
        "tf32": {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "convolution": torch.backends.cudnn.allow_tf32,
        },
        "threads": torch.get_num_threads(),
    }
