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


def guarded(work: Path, main: Callable[[], None]) -> None:
    """Run a process's main function; a fault goes into `fault-{rank}.json` and to stderr, and ends the process."""
    rank = int(os.environ.get("RANK", "0"))
    try:
        main()
    except Busy as busy:
        print(busy, file=sys.stderr, flush=True)
        os._exit(1)  # without a recorded fault: a retry finds the place free
    except Exception as error:
        line = " ".join(str(error).split())
        told = line if isinstance(error, UserError) else f"{type(error).__name__}: {line}"
        fault = {"error": told, "rank": rank, "traceback": traceback.format_exc(), "time": time.time()}
        write_json(work / f"fault-{rank}.json", fault)
        if not isinstance(error, UserError):
            traceback.print_exc()
        sys.stderr.flush()
        # At once: a collective's threads could keep the process, and so the whole job, waiting.
        os._exit(1)


def collect(work: Path) -> dict[str, Any] | None:
    """The first fault of the ranks (the others' often only follow from it) as `fault.json`; None without any."""
    paths = sorted(work.glob("fault-*.json"))
    faults: list[dict[str, Any]] = [read_json(path) for path in paths]
    if not faults:
        return None
    first = min(faults, key=lambda fault: fault["time"])
    write_json(work / FAULT, first)
    for path in paths:
        path.unlink()
    return first


def recorded(work: Path) -> dict[str, Any] | None:
    """The fault that an earlier attempt left."""
    fault: dict[str, Any] | None = read_json(work / FAULT)
    return fault


def forget(work: Path) -> None:
    """Remove what earlier attempts left: the user has started the run anew."""
    for path in (*work.glob("fault-*.json"), work / FAULT):
        path.unlink(missing_ok=True)
