"""The CPUs of this process. Settled before torch is imported: OpenMP, once loaded, binds the process to one of them.

From then on the affinity mask says where the main thread is bound, no longer what the process may use.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

# CPUs of each process, where all processes of a node were given one mask together.
SHARE = "TORCH_RELAY_CPUS_PER_PROCESS"
# OpenMP's variables travel under other names past a launcher that imports torch itself: it would be bound to the first
# core, and its processes with it.
VEILED = "TORCH_RELAY_"
BINDING = ("OMP_PLACES", "OMP_PROC_BIND")

_PLACE = (("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))

_granted: set[int] | None = None


def granted() -> set[int]:
    """The CPUs that this process may use; all there are where the system knows no affinity."""
    if _granted is not None:
        return _granted
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def settle() -> None:
    """Keep to this process's own CPUs of those that the node's processes have together, and remember them."""
    global _granted  # noqa: PLW0603  # the kernel's own record is overwritten by OpenMP
    for name in BINDING:
        if value := os.environ.pop(VEILED + name, None):
            os.environ[name] = value
    if share := os.environ.get(SHARE):
        processes, local_rank = (int(os.environ.get(name, default)) for name, default in _PLACE)
        # Where each process has a mask of its own, there is nothing to divide.
        if len(granted()) >= int(share) * processes > int(share):
            os.sched_setaffinity(0, _neighbours(granted())[local_rank * int(share) : (local_rank + 1) * int(share)])
    _granted = granted()


def _neighbours(cpus: Iterable[int]) -> list[int]:
    """In an order in which the hardware threads of a core, and the cores of a package, stand side by side."""

    def place(cpu: int) -> tuple[int, int, int]:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package, core = (int((topology / f"{name}_id").read_text()) for name in ("physical_package", "core"))
        except (OSError, ValueError):
            package, core = 0, cpu
        return package, core, cpu

    return sorted(cpus, key=place)


def unbind() -> None:
    """Give this process all its CPUs again: a child inherits the core that its parent was bound to."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, granted())
