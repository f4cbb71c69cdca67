"""A fault of the program's own is written down by the process that had it; a retry then ends at once with it."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relay.errors import Busy, UserError
from relay.files import read_json, write_json

FAULT = "fault.json"


def lost_peer(error: BaseException) -> bool:
    """Whether an error only says that another process is gone or silent: gloo raises plain RuntimeErrors for that."""
    distributed = type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError")
    text = str(error)
    return distributed or any(
        words in text for words in ("closed by peer", "reset by peer", "gloo/transport", "Broken pipe")
    )


def guarded(work: Path, main: Callable[[], None]) -> None:
    """Run a process's main function; a fault goes into `fault-{rank}.json` and to stderr, and ends the process."""
    rank = int(os.environ.get("RANK", "0"))
    try:
        main()
    except Busy as busy:
        print(busy, file=sys.stderr, flush=True)
        os._exit(1)  # without a recorded fault: a retry finds the place free
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        record(work, error, rank)
        if not isinstance(error, UserError):
            traceback.print_exc()
        sys.stderr.flush()
        # At once: a collective's threads could keep the process, and so the whole job, waiting.
        os._exit(1)


def record(work: Path, error: BaseException, rank: int = 0) -> None:
    """Write an error that is being handled down as this rank's fault."""
    line = " ".join(str(error).split())
    told = line if isinstance(error, UserError) else f"{type(error).__name__}: {line}"
    fault = {"error": told, "rank": rank, "traceback": traceback.format_exc(), "time": time.time()}
    fault |= {"lost_peer": lost_peer(error), "mistake": isinstance(error, UserError)}
    write_json(work / f"fault-{rank}.json", fault)


def collect(work: Path) -> dict[str, Any] | None:
    """The first fault of the ranks as `fault.json`; None where there is none but the loss of a peer.

    A rank that was killed leaves no word of its own: the others' errors about it are an interruption, worth a retry.
    """
    paths = sorted(work.glob("fault-*.json"))
    faults: list[dict[str, Any]] = [read_json(path) for path in paths]
    for path in paths:
        path.unlink()
    own = [fault for fault in faults if not fault["lost_peer"]]
    if not own:
        return None
    first = min(own, key=lambda fault: fault["time"])
    write_json(work / FAULT, first)
    return first


def recorded(work: Path) -> dict[str, Any] | None:
    """The fault that an earlier attempt left."""
    fault: dict[str, Any] | None = read_json(work / FAULT)
    return fault


def forget(work: Path) -> None:
    """Remove what earlier attempts left: the user has started the run anew."""
    for path in (*work.glob("fault-*.json"), work / FAULT):
        path.unlink(missing_ok=True)
