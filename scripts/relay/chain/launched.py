"""Which process of how many this one is, as whoever started it says in the environment. Needs no torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# The rank and the number of processes: of torchrun, Horovod, Open MPI, MPICH and its kin, and srun. Slurm tells a batch
# script, which is one process, that of the job (SLURM_NTASKS): a step alone has its own number.
VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def rank_and_size() -> tuple[int, int, str]:
    """This process's rank, how many there are, and the variable that says so ('' where none does)."""
    for rank, size in VARIABLES:
        if (count := os.environ.get(size, "")).isdecimal():
            return int(os.environ.get(rank, "0")), int(count), size
    return 0, 1, ""


def end_with_parent(by: signal.Signals = signal.SIGTERM) -> None:
    """Have this process sent a signal when its parent dies, even by SIGKILL (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
