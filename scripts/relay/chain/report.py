"""How far a script is, told to whoever measures it: one line of a file for each few steps.

`step(samples=…)` in a loop is all that a script needs to be measured. `Run.after` tells its steps by itself. Torch
Relay names the file in the environment; without it, nothing is written. Rank 0 tells for all. Needs no torch.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from .ending import note_step

PLACE = "RELAY_CHAIN_REPORT"
FIRST_STEPS = 50  # each of them has a line of its own: among them are those that are not timed
BETWEEN_SECONDS = 0.1  # of two lines, in the first minute
LATER_SECONDS = 1.0
FIRST_SECONDS = 60.0
# The rank and the number of processes: of torchrun, Horovod, Open MPI, MPICH and its kin, and srun. Slurm tells a batch
# script, which is one process, that of the job (SLURM_NTASKS): a step alone has its own number.
VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Reporter:
    """Counts steps and samples, and writes `TIME STEP SAMPLES` where the last line is old enough.

    TIME is in Unix seconds. STEP counts from the training's start, SAMPLES from the process's; it is `-` where nobody
    tells how many.
    """

    def __init__(self, place: str) -> None:
        self.place, self.began, self.written = place, time.time(), 0.0
        self.step, self.samples, self.counted, self.pending = 0, 0, 0, ""
        self._numbered = False  # by `Run.after`, beside which `step` only tells samples
        atexit.register(self.flush)

    def count(self, step: int | None, samples: int | None) -> None:
        """A step has ended: number `step` where it has one, with so many samples over all processes."""
        self._numbered |= step is not None
        if step is not None:
            self.step = step
        elif not self._numbered:
            self.step += 1
        self.samples += samples or 0
        self.counted += 1
        now = time.time()
        self.pending = f"{now:.6f} {self.step} {self.samples if self.samples else '-'}\n"
        if now - self.written >= least_seconds(now - self.began) or self.counted <= FIRST_STEPS:
            self.flush(now)

    def event(self, kind: str, step: int) -> None:
        """A checkpoint of a step is complete (`saved`), or the training goes on from one (`resumed`)."""
        self.flush()
        self.pending = f"{kind} {step}\n"
        self.flush()

    def flush(self, now: float | None = None) -> None:
        """Write what is not written yet."""
        if not self.pending:
            return
        with suppress(OSError), Path(self.place).open("a", encoding="utf-8") as stream:  # a full disk ends no training
            stream.write(self.pending)
        self.pending, self.written = "", now or time.time()


def least_seconds(since_begin: float) -> float:
    """How long a line at least waits for the next one: less in the first minute, for short trainings."""
    return BETWEEN_SECONDS if since_begin < FIRST_SECONDS else LATER_SECONDS


def rank_and_size() -> tuple[int, int, str]:
    """This process's rank, how many there are, and the variable that says so ('' where none does)."""
    for rank, size in VARIABLES:
        if (count := os.environ.get(size, "")).isdecimal():
            return int(os.environ.get(rank, "0")), int(count), size
    return 0, 1, ""


def _rank_and_size() -> tuple[int, int]:
    """This process's rank, and how many there are: as torch knows it, or else as the launcher told."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return rank_and_size()[:2]


_reporters: dict[str, Reporter] = {}  # by place: one in each process


def reporter() -> Reporter | None:
    """This process's; None where nobody measures, and on all ranks but the first."""
    place = os.environ.get(PLACE)
    if not place or _rank_and_size()[0]:
        return None
    return _reporters.get(place) or _reporters.setdefault(place, Reporter(place))


def tell(kind: str, step: int) -> None:
    """Tell whoever measures, and `relay-chain`, that a step is `saved`, or that the training has `resumed` from it."""
    note_step(step, saved=kind == "saved")
    if report := reporter():
        report.event(kind, step)


def step(samples: int) -> None:
    """Tell that a step has ended, for measuring: one line in a training loop, on every rank or on rank 0.

    `samples` is how many samples this process has trained in it. All processes are taken to do as many.
    """
    if report := reporter():
        report.count(None, samples * _rank_and_size()[1])
