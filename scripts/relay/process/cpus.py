"""The CPUs of this process.

They must be settled before torch is imported. When OpenMP is loaded, it may bind the main thread to one CPU; after
that, the affinity mask no longer shows which CPUs the process may use.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from relay.base.errors import UserError

# The number of CPUs of each process, for nodes where all processes start with the same affinity mask.
SHARE = "TORCH_RELAY_CPUS_PER_PROCESS"
# OpenMP's variables get this prefix on their way through a launcher that imports torch. Otherwise OpenMP would bind the
# launcher to the first core, and its processes would inherit that.
VEILED = "TORCH_RELAY_"
BINDING = ("OMP_PLACES", "OMP_PROC_BIND")
# They have the last word over OMP_NUM_THREADS, and so over the declared threads.
LIMITS = ("MKL_NUM_THREADS", "OMP_DYNAMIC", "OMP_THREAD_LIMIT")

# Below so many samples for each thread, threads mostly wait for each other: on a busy machine, LeNet's steps of 16
# samples took twelve times as long on two threads as on one.
SAMPLES_PER_THREAD = 16

_PLACE = (("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))

_granted: set[int] | None = None


def granted() -> set[int]:
    """The CPUs that this process may use; all CPUs on systems without affinity masks."""
    if _granted is not None:
        return _granted
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def check(what: str, threads: int) -> None:
    """Raise UserError where this process may use fewer CPUs than its threads."""
    if threads > (own := len(granted())):
        raise UserError(f"{what}: threads is {threads}, but the process may use only {own} CPUs")


def settle() -> None:
    """Restrict this process to its own part of the node's CPUs, and remember them. Sets OpenMP's variables."""
    global _granted  # noqa: PLW0603  # OpenMP overwrites the kernel's record
    for name in BINDING:
        if value := os.environ.pop(VEILED + name, None):
            os.environ[name] = value
    if share := os.environ.get(SHARE):
        processes, local_rank = (int(os.environ.get(name, default)) for name, default in _PLACE)
        # If the launcher gave each process its own mask, there is nothing to divide.
        if len(granted()) >= int(share) * processes > int(share):
            part = len(granted()) // processes  # of more than is needed, parts share no core while others are idle
            os.sched_setaffinity(0, _neighbours(granted())[local_rank * part : local_rank * part + int(share)])
    _granted = granted()


def _neighbours(cpus: Iterable[int]) -> list[int]:
    """The CPUs sorted so that the hardware threads of a core, and the cores of a package, are neighbours."""

    def place(cpu: int) -> tuple[int, int, int]:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package, core = (int((topology / f"{name}_id").read_text()) for name in ("physical_package", "core"))
        except (OSError, ValueError):
            package, core = 0, cpu
        return package, core, cpu

    return sorted(cpus, key=place)


def useful_threads(threads: int, samples: int) -> int:
    """How many of the threads a step of so many samples can use."""
    return max(1, min(threads, samples // SAMPLES_PER_THREAD))


def unbind() -> None:
    """Allow this process all its CPUs again, because a child inherits its parent's binding to one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, granted())
