"""Why a job's processes ended before their work was done: each writes its fault down, the job finds the first of them.

What a retry would only repeat is kept as `fault.json`, with which the retry ends at once. `run_folder.together` is the
processes' side. The attempt's name is part of the files' names, so that what an earlier attempt left does not count for
a later one.
"""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relay.base import ending, typed
from relay.base.ending import QUOTED, Ending
from relay.base.errors import Busy, EndedItself, Told, UserError
from relay.base.files import write_json_or_say
from relay.base.printable import printable
from relay.chain.files import disk_refusal
from relay.chain.writers import make_own
from relay.run_folder import alive, attempts, known_faults, watchdog
from relay.run_folder.known_faults import Kind, MetBy, Row
from relay.run_folder.try_again import OF_KIND, Case, Tried, given_up

FAULT = "fault.json"
FAULT_BYTES = 2**16  # a recorded fault is smaller
OUTLIVED_SECONDS = 3600.0  # a younger fault may be one of another job of the same run, whose processes look for it
WATCHDOG_TIMEOUT = "Watchdog caught collective operation timeout"  # torch's own words


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a process says of the error that ended it.

    `error` is its line. `kind` is its type's name. `mistake`: whether it is the user's, whose line says what helps.
    `text` has the types and texts of all that led to it, by which it is known; '' where the line has it all.
    `traceback` says where in the code it was, and `node` on which of Slurm's nodes. `time` is in seconds since 1970.
    """

    error: str
    rank: int
    kind: str
    mistake: bool
    time: float
    text: str = ""
    remedy: str = ""
    traceback: str = ""
    world_size: int = 1
    node: str = ""
    met_by: MetBy = "processes"

    @classmethod
    def of(cls, error: BaseException, rank: int = 0, where: str = "") -> Fault:
        """That of an error, which came at this place."""
        first, *quoted = str(error).split(QUOTED)  # in one line, but for lines that it quotes: of a command's output
        line = QUOTED.join([" ".join(first.split()), *quoted])
        mistake = isinstance(error, UserError)
        return cls(
            error=line if mistake else f"{type(error).__name__}: {line}",
            rank=rank,
            kind=type(error).__name__,
            mistake=mistake,
            time=time.time(),
            text=known_faults.text_of(error),
            remedy=error.remedy if isinstance(error, Told) else ending.remedy_of(error),
            traceback=where,
            world_size=world_size(),
            node=os.environ.get("SLURMD_NODENAME", ""),
        )

    @classmethod
    def read(cls, path: Path) -> Fault | None:
        """A recorded fault; None where it is gone, or damaged."""
        fault = typed.read(cls, path)
        return fault and cls(**_printable(fault))

    def write(self, path: Path) -> None:
        """Write it down, or say that this cannot be done."""
        write_json_or_say(path, _printable(self))

    @property
    def row(self) -> Row | None:
        """What is known of such faults; None of a mistake, which speaks for itself, and of what nobody has met yet."""
        return None if self.mistake else known_faults.look_up(self.text or self.error, self.met_by)

    def is_a(self, *kinds: Kind) -> bool:
        """Whether it is of one of these kinds."""
        return self.row is not None and self.row.kind in kinds

    @property
    def case(self) -> Case:
        """What it means for another try."""
        if self.row:
            return OF_KIND[self.row.kind]
        return Case.UNKNOWN if self.kind == Busy.__name__ else Case.FAULT

    def again(self, *, came_further: bool = False) -> bool:
        """Whether the job is tried again; `came_further`: a training has saved something newer than it began with."""
        return given_up(self.case, Tried(came_further=came_further)) is None

    @property
    def advice(self) -> str:
        """What the user can do about it; '' where its own line says it."""
        remedy = self.remedy or (self.row.remedy if self.row else "")
        return remedy or ("" if self.mistake else "the log has the traceback")


def _printable(fault: Fault) -> dict[str, Any]:
    return {name: printable(value) if isinstance(value, str) else value for name, value in asdict(fault).items()}


def world_size() -> int:
    """How many processes there are, as their launcher has told this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def file_of(work: Path, rank: int) -> Path:
    """Where this attempt's fault of a rank is written."""
    return work / f"fault-{alive.attempt()}-{rank}.json"


def record(work: Path, error: BaseException, rank: int = 0, where: str = "") -> Fault:
    """Write an error down as this rank's fault; `where` it was, by default that of the error that is being handled."""
    fault = Fault.of(error, rank, where or traceback.format_exc())
    fault.write(file_of(work, rank))
    return fault


def of_ranks(work: Path) -> list[Fault]:
    """The faults that the ranks of this attempt have recorded, in the order of ranks."""
    faults = (Fault.read(path) for path in work.glob(f"fault-{alive.attempt()}-*.json"))
    return sorted((fault for fault in faults if fault), key=lambda fault: fault.rank)


def first_of(faults: list[Fault]) -> Fault | None:
    """The first fault that is more than the loss of a peer."""
    own = [fault for fault in faults if not fault.is_a(Kind.LOST_PEER)]
    return min(own, key=lambda fault: fault.time, default=None)


# The job's side


def begin(work: Path, what: str, tries: int) -> int | None:
    """Begin a job in its folder: None, or the exit status where a retry (`tries` > 1) would only repeat a fault.

    `what` names the job. What earlier attempts left is removed: the user has started it again.
    """
    if tries > 1 and (fault := recorded(work)):
        return ending.fault(f"{what} failed before, not tried again: {fault.error}")
    make_own(work)
    forget(work)
    return None


def recorded(work: Path) -> Fault | None:
    """The fault that an earlier attempt left."""
    return Fault.read(work / FAULT)


def forget(work: Path) -> None:
    """A new attempt begins, by a name of its own; what earlier ones left is removed."""
    alive.begin()
    watchdog.forget(_log())
    for pattern in (FAULT, watchdog.DUMPS, alive.NOTES):
        _discard(work, pattern)
    for path in work.glob("fault-*.json"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > OUTLIVED_SECONDS:
                path.unlink()


def concluded(work: Path, what: str, status: int, *, came_further: bool = False) -> int:
    """The exit status of a job whose processes ended with `status` and left no result; says and records the outcome."""
    if status == 0:  # nobody has killed them
        record(work, EndedItself("its processes ended by themselves in the middle of their work"))
    fault = collect(work, came_further=came_further)
    return ending.say(outcome(fault, what, status, came_further=came_further))


def collect(work: Path, *, came_further: bool = False) -> Fault | None:
    """The first fault of the ranks, as `fault.json` where a retry would only repeat it; None where there is none.

    A rank that was killed leaves no word of its own: the others' errors about it are an interruption, worth a retry.
    """
    left, flights = of_ranks(work), watchdog.dumps(work)
    first = first_of(left) or first_of(_of_watchdog(flights)) or _of_the_disk(work) or _of_slurm()
    if first and first.is_a(Kind.HANG) and len({fault.rank for fault in left} | set(flights)) < first.world_size:
        first = None  # they waited for one that was killed
    _discard(work, f"fault-{alive.attempt()}-*.json")
    _discard(work, alive.NOTES)
    if first and not first.again(came_further=came_further):  # else the retry may find another place, or this one free
        first.write(work / FAULT)
    _show(first, left)
    return first


def _show(first: Fault | None, left: list[Fault]) -> None:
    """Show on stderr what only the processes know: of several, each has kept its own traceback to itself."""
    if first is None:
        for fault in left:
            print(f"rank {fault.rank} lost its peers: {fault.error}", file=sys.stderr)
    elif first.is_a(Kind.HANG):
        for fault in left:
            print(f"rank {fault.rank} was here:\n{fault.traceback}", file=sys.stderr)
    elif first.world_size > 1 and not first.mistake:
        print(first.traceback, file=sys.stderr)


def outcome(fault: Fault | None, what: str, status: int, *, came_further: bool = False) -> Ending:
    """How a job ended whose processes left this fault, and no result, and ended with `status`. `what` names the job."""
    if fault is None:
        lines = _slurms_lines()
        ends = [line for line in lines if re.search("CANCELLED|Killed|oom", line)] or lines[-1:]
        why = f"Slurm says: {ends[0]}" if ends else "killed, a lost node, out of memory?"
        return Ending(ending.INTERRUPTED, f"{what}: its processes ended without a word (status {status}): {why}")
    if fault.kind == Busy.__name__:
        return Ending(ending.INTERRUPTED, fault.error)
    all_alike = fault.mistake or fault.met_by == "srun"
    place = "" if all_alike else f" (rank {fault.rank}{f' on {fault.node}' if fault.node else ''})"
    message = f"{what} failed: {fault.error}{place}"
    if not fault.again(came_further=came_further):
        return Ending(ending.FAULT, message, fault.advice)
    node = fault.node if fault.case is Case.HARDWARE else ""
    return Ending(ending.INTERRUPTED, message, fault.advice, node=node)


def _of_the_disk(work: Path) -> Fault | None:
    """That the folder is gone, or its disk takes no writing: no process could leave a fault there. Else None."""
    if not work.exists():
        return Fault.of(UserError(attempts.gone(work)))
    error = disk_refusal(work, FAULT_BYTES)
    remedy = ending.remedy_of(error)
    return Fault.of(Told(f"{work}: {error.strerror}", remedy)) if error and remedy else None


def _of_slurm() -> Fault | None:
    """Why Slurm has not started the processes, as it says in the log; None where it says nothing that is known."""
    if refusal := next((line for line in _slurms_lines() if known_faults.look_up(line, "srun")), None):
        return Fault(error=refusal, rank=0, kind="srun", mistake=False, time=time.time(), met_by="srun")
    return None


def _slurms_lines() -> list[str]:
    """What Slurm itself says in the log of this attempt."""
    lines = re.findall(r"(?m)^(?:srun|slurmstepd\S*): (?:error|fatal): .*", watchdog.of_attempt(_log()))
    return [line for line in lines if "Exited with exit code" not in line]


def _of_watchdog(flights: dict[int, dict[str, Any]]) -> list[Fault]:
    """The faults of ranks that torch's NCCL watchdog has ended: they could record none themselves."""
    hung = watchdog.hang(flights)
    reasons = [(hung[0], f"{WATCHDOG_TIMEOUT}: {hung[1]}")] if hung else []
    reasons += [(rank, f"DistBackendError: {why}") for rank, why in watchdog.words(_log())]
    one_node = os.environ.get("SLURM_JOB_NUM_NODES", "") == "1"
    faults = [
        Fault(
            error=why,
            rank=rank,
            kind="Watchdog",
            mistake=False,
            time=place,
            world_size=max((each["world_size"] for each in flights.values()), default=sys.maxsize),  # nobody knows
            node=os.environ.get("SLURMD_NODENAME", "") if one_node else "",
        )
        for place, (rank, why) in enumerate(reasons)
    ]
    # The others also wait for a rank whose GPU has failed.
    return [fault for fault in faults if fault.is_a(Kind.HARDWARE, Kind.DEVICE)] or faults


def _log() -> Path | None:
    """The job's log."""
    log = os.environ.get(ending.LOG)
    return Path(log) if log else None


def _discard(work: Path, pattern: str) -> None:
    """Remove the files of a name, as far as that can be done: the disk may only be read."""
    for path in work.glob(pattern):
        with suppress(OSError):  # such as a rank's own note, which it removes as it ends
            path.unlink()
