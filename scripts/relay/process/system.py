"""The system that this process runs on, as the kernel and its environment tell it. Needs no torch."""

import os
import platform
import re
import resource
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from relay.base.printable import printable
from relay.process import cpus

CONTROL_GROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**62  # version 1 of control groups reports about 2**63 for no limit
_TCP_INFO_BYTES = 232
_BYTES_SENT_OFFSET = 200  # tcpi_bytes_sent in struct tcp_info of linux/tcp.h, since Linux 4.19
_OF_SLURM = (
    *("CPUS_ON_NODE", "CPUS_PER_TASK", "CPU_BIND", "GPUS_ON_NODE", "JOB_GPUS", "JOB_ID", "JOB_NUM_NODES"),
    *("JOB_PARTITION", "LOCALID", "MEM_PER_CPU", "MEM_PER_NODE", "NNODES", "NODEID", "NTASKS", "PROCID", "STEP_GPUS"),
    *("STEP_NUM_NODES", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "TASKS_PER_NODE", "TMPDIR"),
)
SLURM = tuple(f"SLURM_{name}" for name in _OF_SLURM)
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TMPDIR", "PYTHONNOUSERSITE", "LOADEDMODULES", "LD_PRELOAD")
# MASTER_ is with the misspelt ones; GLIBC_TUNABLES and MALLOC_ are of the allocation of memory.
LIBRARIES = (
    *("CUDA_", "GLIBC_TUNABLES", "GLOO_", "GOMP_", "KMP_", "MALLOC_", "MASTER_", "MKL_", "NCCL_", "OMP_", "PYTORCH_"),
    *("TORCH_", "TRITON_"),
)
SECRET = re.compile(r"AUTH|CREDENTIAL|JWT|KEY|PASS|SECRET|TOKEN")


def memory_limit_mb(groups: Path = Path("/proc/self/cgroup")) -> int | None:
    """The memory limit of this process in MB of 2**20 bytes: the least of its control groups'; None without a limit."""
    limits = [*_in_groups(groups, "", "memory.max"), *_in_groups(groups, "memory", "memory.limit_in_bytes")]
    least = min((int(text) for text in limits if text != "max"), default=_UNLIMITED)
    return None if least >= _UNLIMITED else least // 2**20


def memory_bytes() -> int:
    """The main memory that this process and those beside it may use: the limit, or the machine's."""
    limit_mb = memory_limit_mb()
    return machine_memory_bytes() if limit_mb is None else min(machine_memory_bytes(), limit_mb * 2**20)


def machine_memory_bytes() -> int:
    """The main memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_quota(groups: Path = Path("/proc/self/cgroup"), root: Path = CONTROL_GROUPS) -> float | None:
    """The CPUs whose time this process may use: the least of its control groups' quotas; None without a quota."""
    quotas, periods = (_in_groups(groups, "cpu", f"cpu.cfs_{name}_us", root) for name in ("quota", "period"))
    pairs = [*(text.split() for text in _in_groups(groups, "", "cpu.max", root)), *zip(quotas, periods, strict=False)]
    return min((int(quota) / int(period) for quota, period in pairs if quota not in ("max", "-1")), default=None)


def memory_kills(groups: Path = Path("/proc/self/cgroup"), root: Path = CONTROL_GROUPS) -> int | None:
    """How many processes of this one's control group the kernel has killed for memory so far; None where not told.

    Processes that this one has started are in the same group, or in one below it.
    """
    own = _in_groups(groups, "", "memory.events", root, above=False)
    own += _in_groups(groups, "memory", "memory.oom_control", root, above=False)
    match = re.search(r"^oom_kill (\d+)$", "\n".join(own), re.MULTILINE)
    return int(match[1]) if match else None


def _in_groups(
    groups: Path, controller: str, name: str, root: Path = CONTROL_GROUPS, *, above: bool = True
) -> list[str]:
    """What a file says in each of this process's control groups that has it; `controller` is '' in version 2.

    `above`: also in the groups around these.
    """
    lines = [line.split(":", 2) for line in text(groups).splitlines()]
    places = [root / controller / path.lstrip("/") for _, names, path in lines if controller in names.split(",")]
    files = [
        folder / name
        for place in places
        for folder in (place, *(place.parents if above else ()))
        if folder.is_relative_to(root)
    ]
    return [content for file in files if (content := text(file).strip())]


def facts() -> dict[str, Any]:
    """What is recorded of every run's node, and of the process's part of it."""
    return {
        "host": socket.gethostname(),
        "cpus": len(cpus.granted()),
        "virtual": virtual(),
        "cpu_quota": cpu_quota(),
    }


def virtual(processor: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine is a virtual one: its processors have the flag `hypervisor`, or Xen tells."""
    return "hypervisor" in text(processor).split() or Path("/sys/hypervisor/type").exists()


def text(path: Path) -> str:
    """What the kernel tells in a file; '' where it does not, as without Linux."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def held_bytes() -> dict[str, int]:
    """This process's memory by the names in /proc/self/status (`VmRSS`, `VmHWM`, `VmData`…); empty without Linux."""
    sizes = (line.split() for line in text(Path("/proc/self/status")).splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, _ in sizes}


def peak_main_memory_bytes() -> int:
    """The most main memory that this process has used, whatever it computes on."""
    # On Linux, getrusage's peak survives `exec`: a small program would report the peak of the one that started it.
    if (peak := held_bytes().get("VmHWM")) is not None:
        return peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def processor() -> str:
    """The kind of processor."""
    lines = text(Path("/proc/cpuinfo")).splitlines()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def driver(module: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's driver, as its kernel module tells it; None where there is none."""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text(module))
    return match[1] if match else None


def recorded_variables() -> dict[str, str]:
    """The environment variables that are recorded, in files that others may read, but Slurm's.

    Named ones, and settings of libraries. Others may be secrets. SLURM_JWT is one.
    """
    return {name: printable(value) for name, value in sorted(os.environ.items()) if _is_known(name)}


def slurm_variables() -> dict[str, str]:
    """Those that Slurm has set."""
    return {name: os.environ[name] for name in SLURM if name in os.environ}


def _is_known(name: str) -> bool:
    return name in NAMES or (name.startswith(LIBRARIES) and not SECRET.search(name))


def sent_by_socket() -> dict[str, int]:
    """The bytes sent so far over each open TCP socket of this process, whatever library sends them.

    Empty where the kernel has no counters.
    """
    sent: dict[str, int] = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            name = str(link.readlink())
            if not name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (sent[name],) = struct.unpack_from("Q", info, _BYTES_SENT_OFFSET)
        except (OSError, struct.error):
            continue  # the descriptor was closed in the meantime, or is not a TCP socket
    return sent


def sent_since(before: dict[str, int]) -> int:
    """The bytes sent since `before`, an earlier result of `sent_by_socket`, over old and new sockets."""
    return sum(count - before.get(name, 0) for name, count in sent_by_socket().items())
