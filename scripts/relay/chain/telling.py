"""What a script tells: a mistake in one line, its planned stop with status 75, and how far it is. Needs no torch.

torchrun takes status 75 for a failure, prints tracebacks, and passes on another status. Where `relay-chain` has started
it and has been told of the stop, its ranks end with status 0. What tells it is a file, the note. It lies in the node's
temporary folder, where some rank of the job runs. The environment names it.

How far a script is, is told to whoever measures it: one line of a file for each few steps. `step(samples=…)` in a loop
is all that it needs to be measured; `Run.after` tells its steps by itself. Torch Relay names the file in the
environment; without it, nothing is written. Rank 0 tells for all.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from .files import write_json

NAME = "relay.chain"
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: the next job goes on
KILLED = 128 + 9  # by SIGKILL, as all of a job's processes are in any order: no fault of the script's
ACCEPT = "RELAY_CHAIN_ACCEPT"  # `relay-chain --accept` sets it: other batches than before are taken
NOTE = "RELAY_CHAIN_NOTE"
HEARS = "RELAY_CHAIN_HEARS"  # set by a `relay-chain` whose command is torchrun: it needs no status beside the note
_EARLY, _STEPS = "early", "steps"  # files beside the note
TRAINS, STOPS = "trains-", "stops-"  # and the marks of ranks
TORCHRUN = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its ranks
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


class ChainError(Exception):
    """A mistake that the user can mend. Uncaught, it is one line on stderr and status 1.

    `aloud` is False on the ranks that leave the telling to another one.
    """

    def __init__(self, message: str, *, aloud: bool = True) -> None:
        super().__init__(message)
        self.aloud = aloud


class Stopped(SystemExit):
    """A planned stop: the state is saved, and the process ends, with status 75 as a rule. `reason` says why."""

    def __init__(self, step: int, reason: str, status: int = STOPPED) -> None:
        super().__init__(status)
        self.step, self.reason = step, reason


def say(line: str) -> None:
    """Tell the user one line."""
    print(f"{NAME}: {line}", file=sys.stderr, flush=True)


def tell_in_one_line() -> None:
    """From now on, a `ChainError` that nobody catches is one line, without a traceback. Other errors are as before."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ChainError):
            before(kind, error, trace)
        elif error.aloud:
            say(str(error))

    if getattr(before, "__module__", None) != __name__:
        sys.excepthook = hook


def stopped(step: int, reason: str, *, rank: int) -> Stopped:
    """Tell that the state after `step` steps is saved, and why the job stops; what the rank then has to raise."""
    quiet = {HEARS, TORCHRUN} <= os.environ.keys()
    status = 0 if leave_note(step, reason, quiet=quiet) and quiet else STOPPED
    if rank == 0:
        say(f"stops after step {step}, which is saved: {reason}")
    return Stopped(step, reason, status)


def leave_note(step: int, reason: str, *, quiet: bool = False, by_signal: bool = False) -> bool:
    """Tell `relay-chain` alone; whether it hears. `quiet`: the process ends with status 0.

    Where no room is left for the note, this rank of torchrun's renames its mark, which needs none.
    `by_signal`: that is all that this process knows. It has agreed with no other one, and leaves what others have told.
    """
    with suppress(KeyError, OSError):  # there is none, or it is on another node
        if by_signal and read_note(Path(os.environ[NOTE])):
            return True
        write_json(Path(os.environ[NOTE]), {"step": step, "reason": reason, "quiet": quiet, "by_signal": by_signal})
        return True
    with suppress(KeyError, OSError):
        _mark().rename(Path(os.environ[NOTE]).with_name(f"{STOPS}{os.getpid()}"))
    return False


def listen_for_steps(place: Path) -> None:
    """Have steps told beside the note."""
    place.with_name(_STEPS).touch()


def has_gained(place: Path) -> bool | None:
    """Whether the job has saved a step, as was told beside the note; None where nothing was told."""
    steps = read_note(place.with_name(_STEPS))
    return None if steps is None else steps.get("saved") is True


def come() -> None:
    """Tell `relay-chain` that this rank of torchrun's trains, until it goes: one that is killed leaves that word."""
    if {NOTE, TORCHRUN} <= os.environ.keys() and _mark().with_name(_STEPS).exists():
        with suppress(OSError):
            _mark().touch()
        atexit.register(go)


def go() -> None:
    """This process trains no more, or ends by itself. A fork of it had another name."""
    with suppress(KeyError, OSError):
        _mark().unlink(missing_ok=True)


def _mark() -> Path:
    return Path(os.environ[NOTE]).with_name(f"{TRAINS}{os.getpid()}")


def marks(place: Path) -> set[str]:
    """What ranks of torchrun's have left: TRAINS one that was killed, STOPS one that found no room for a note.

    torchrun tells them as it tells one that has failed.
    """
    return {mark for mark in (TRAINS, STOPS) if any(place.parent.glob(f"{mark}*"))}


def announce_early(place: Path) -> None:
    """Tell the ranks, beside the note, that SIGTERM stands for a signal that comes before the job's end."""
    with suppress(OSError):
        place.with_name(_EARLY).touch()


def is_early() -> bool:
    """Whether that was told, on this node."""
    return NOTE in os.environ and Path(os.environ[NOTE]).with_name(_EARLY).exists()


def read_stop(place: Path, status: int, *, ordered: bool) -> dict[str, Any] | None:
    """The stop of a script that ended with this status, as it was told; None where none was.

    A launcher signals its processes also when one of them has failed. What then waits for that one tells of a stop,
    too. It is none where no signal has come from outside (`ordered`).
    """
    stop = read_note(place)
    failed = stop and stop.get("by_signal") and not ordered and status not in (0, STOPPED)
    return None if failed else stop


def read_note(place: Path) -> dict[str, Any] | None:
    """What was told; None where nothing was."""
    with suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return content
    return None


# How far it is


class Reporter:
    """Counts steps and samples, and writes `TIME STEP SAMPLES` where the last line is old enough.

    TIME is in Unix seconds. STEP counts from the training's start, SAMPLES from the process's; it is `-` where nobody
    tells how many.
    """

    def __init__(self, place: str) -> None:
        self.place, self.began, self.written = place, time.monotonic(), 0.0
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
        self.pending = f"{time.time():.6f} {self.step} {self.samples if self.samples else '-'}\n"
        now = time.monotonic()  # the other clock may be set back
        if now - self.written >= least_seconds(now - self.began) or self.counted <= FIRST_STEPS:
            self.flush()

    def event(self, kind: str, step: int) -> None:
        """A checkpoint of a step is complete (`saved`), or the training goes on from one (`resumed`)."""
        self.flush()
        self.pending = f"{kind} {step}\n"
        self.flush()

    def flush(self) -> None:
        """Write what is not written yet."""
        if not self.pending:
            return
        with suppress(OSError), Path(self.place).open("a", encoding="utf-8") as stream:  # a full disk ends no training
            stream.write(self.pending)
        self.pending, self.written = "", time.monotonic()


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
    with suppress(KeyError, OSError):  # as for the note
        if (place := Path(os.environ[NOTE]).with_name(_STEPS)).exists():
            write_json(place, {"step": step, "saved": kind == "saved"})
    if report := reporter():
        report.event(kind, step)


def step(samples: int) -> None:
    """Tell that a step has ended, for measuring: one line in a training loop, on every rank or on rank 0.

    `samples` is how many samples this process has trained in it. All processes are taken to do as many.
    """
    if report := reporter():
        report.count(None, samples * _rank_and_size()[1])
