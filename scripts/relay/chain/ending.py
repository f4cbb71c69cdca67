"""How a script ends: by a mistake told in one line, or by a planned stop with status 75, of which `relay-chain` hears.

torchrun takes status 75 for a failure, prints tracebacks, and passes on another status. Where `relay-chain` has started
it and has been told, its ranks end with status 0. What tells it is a file, the note. It lies in the node's temporary
folder, where some rank of the job runs. The environment names it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from .files import write_json

NAME = "relay.chain"
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: the next job goes on
ACCEPT = "RELAY_CHAIN_ACCEPT"  # `relay-chain --accept` sets it: other batches than before are taken
NOTE = "RELAY_CHAIN_NOTE"
HEARS = "RELAY_CHAIN_HEARS"  # set by a `relay-chain` whose command is torchrun: it needs no status beside the note
_EARLY, _STEPS = "early", "steps"  # files beside the note
TORCHRUN = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its ranks


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


def leave_note(step: int, reason: str, *, quiet: bool = False) -> bool:
    """Tell `relay-chain` alone; whether it hears. `quiet`: the process ends with status 0."""
    with suppress(KeyError, OSError):  # there is none, or it is on another node
        write_json(Path(os.environ[NOTE]), {"step": step, "reason": reason, "quiet": quiet})
        return True
    return False


def note_step(step: int, *, saved: bool) -> None:
    """Tell `relay-chain`, where it listens, that a step is `saved`, or that this job goes on from it."""
    with suppress(KeyError, OSError):  # as for the note
        if (place := Path(os.environ[NOTE]).with_name(_STEPS)).exists():
            write_json(place, {"step": step, "saved": saved})


def listen_for_steps(place: Path) -> None:
    """Have steps told beside the note."""
    place.with_name(_STEPS).touch()


def has_gained(place: Path) -> bool | None:
    """Whether the job has saved a step, as was told beside the note; None where nothing was told."""
    told = read_note(place.with_name(_STEPS))
    return None if told is None else told.get("saved") is True


def announce_early(place: Path) -> None:
    """Tell the ranks, beside the note, that SIGTERM stands for a signal that comes before the job's end."""
    with suppress(OSError):
        place.with_name(_EARLY).touch()


def is_early() -> bool:
    """Whether that was told, on this node."""
    return NOTE in os.environ and Path(os.environ[NOTE]).with_name(_EARLY).exists()


def read_note(place: Path) -> dict[str, Any] | None:
    """What was told; None where nothing was."""
    with suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return content
    return None
