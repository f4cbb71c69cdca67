"""Which environment variables are recorded, in files that others may read: named ones, and settings of libraries.

Others may be secrets. SLURM_JWT is one.
"""

from __future__ import annotations

import os
import re

from relay.base.printable import printable

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


def variables() -> dict[str, str]:
    """Those of this process, but Slurm's."""
    return {name: printable(value) for name, value in sorted(os.environ.items()) if _is_known(name)}


def of_slurm() -> dict[str, str]:
    """Those that Slurm has set."""
    return {name: os.environ[name] for name in SLURM if name in os.environ}


def _is_known(name: str) -> bool:
    return name in NAMES or (name.startswith(LIBRARIES) and not SECRET.search(name))
