"""Is a job tried again that has not done its work? `given_up` is the one table of cases, and three ask it.

The job itself, when it ends: what it calls a fault is never tried again. A job that Slurm has started again by itself,
as after a lost node or a preemption: the driver sees none of its ends. And the driver, in the place of Snakemake, which
has one number of retries for whatever happens.
"""

from dataclasses import dataclass
from enum import StrEnum

from relay.run_folder.known_faults import Kind

FRUITLESS_ATTEMPTS = 2  # in a row without a newer checkpoint: a training is then given up
SAVING_ATTEMPTS = 10  # the same while a process still holds the run; each waits a minute for it


class Case(StrEnum):
    """What has ended a job before its work was done."""

    FAULT = "fault"  # of the program, of its user, or of a disk: a retry would only repeat it
    HANG = "hang"  # a collective did not end, and all ranks were alive: each try costs the group's timeout
    DEADLINE = "deadline"  # it stopped by itself as its time limit was near, and saved
    HARDWARE = "hardware"  # a node's GPU, or its connection
    FOR_MEMORY = "killed for memory"  # by Slurm or the kernel
    UNKNOWN = "unknown"  # preempted, told to end, killed, a lost node or peer, a busy device: it may pass


OF_KIND = {
    Kind.LOST_PEER: Case.UNKNOWN,
    Kind.BUSY: Case.UNKNOWN,
    Kind.DEVICE: Case.UNKNOWN,
    Kind.HARDWARE: Case.HARDWARE,
    Kind.HANG: Case.HANG,
    Kind.MEMORY: Case.FAULT,  # the size does not fit, as before
    Kind.SETUP: Case.FAULT,
}


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What is known of a job's tries so far; as it stands, of a first one.

    `number` is that of the try that has just ended, and `retries` is how many the workflow allows after the first.
    Of a training, `came_further` says whether this try has saved something newer; `fruitless` counts its tries in a row
    that have not, up to `step`, and is None for other jobs. `held`: a process still holds the run, and may save.
    `node_without_other` is the failed node without which no other could take the job; '' where one can.
    `memory_spent`: why more memory would not help, after a kill for memory; '' where it may.
    """

    number: int = 1
    retries: int = 1
    came_further: bool = False
    fruitless: int | None = None
    step: int = 0
    held: bool = False
    node_without_other: str = ""
    memory_spent: str = ""


def given_up(case: Case, tried: Tried) -> str | None:
    """Why the job is given up, '' where what has happened says it; None: it is tried again."""
    match case:
        case Case.FAULT:
            return ""
        case Case.HANG:
            return None if tried.came_further else ""
        case Case.FOR_MEMORY:
            return tried.memory_spent or None
        case Case.HARDWARE if tried.node_without_other:
            return f"no other node than {tried.node_without_other} can take it"
        case _ if tried.fruitless is None:
            return "" if tried.number > tried.retries else None
        case _ if tried.fruitless < (SAVING_ATTEMPTS if tried.held else FRUITLESS_ATTEMPTS):
            return None
        case _:
            return f"{tried.fruitless} attempts in a row came no further than step {tried.step}"
