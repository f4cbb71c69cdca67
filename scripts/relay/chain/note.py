"""What a script tells `relay-chain` when it stops: launchers such as torchrun do not pass on status 75.

torchrun takes it for a failure, and prints tracebacks. Where `relay-chain` has started it and has
been told, its ranks end with status 0.

`relay-chain` names a file in the environment. It lies in the node's temporary folder, where some rank of the job runs.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import STOPPED, Stopped, say
from .files import write_json

ACCEPT = "RELAY_CHAIN_ACCEPT"  # `relay-chain --accept` sets it: other batches than before are taken
NOTE = "RELAY_CHAIN_NOTE"
EARLY = "early"
HEARS = (
    "RELAY_CHAIN_HEARS"  # set by a `relay-chain` whose command is torchrun, and that needs no status beside the note
)
TORCHRUN = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its ranks


def stopped(step: int, reason: str, *, rank: int) -> Stopped:
    """Tell that the state after `step` steps is saved, and why the job stops; what the rank then has to raise."""
    quiet = {HEARS, TORCHRUN} <= os.environ.keys()
    status = 0 if leave(step, reason, quiet=quiet) and quiet else STOPPED
    if rank == 0:
        say(f"stops after step {step}, which is saved: {reason}")
    return Stopped(step, reason, status)


def leave(step: int, reason: str, *, quiet: bool = False) -> bool:
    """Tell `relay-chain` alone; whether it hears. `quiet`: the process ends with status 0."""
    with suppress(KeyError, OSError):  # there is none, or it is on another node
        write_json(Path(os.environ[NOTE]), {"step": step, "reason": reason, "quiet": quiet})
        return True
    return False


def announce(place: Path) -> None:
    """Tell the ranks, beside the note, that SIGTERM stands for a signal that comes before the job's end."""
    with suppress(OSError):
        place.with_name(EARLY).touch()


def is_early() -> bool:
    """Whether that was told, on this node."""
    return NOTE in os.environ and Path(os.environ[NOTE]).with_name(EARLY).exists()


def read(place: Path) -> dict[str, Any] | None:
    """What was told; None where nothing was."""
    with suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return content
    return None
