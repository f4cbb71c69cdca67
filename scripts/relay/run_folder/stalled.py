"""Ends a gate that comes no further: nobody waits for ever for what a strategy's processes wait for."""

import os
import sys
import threading
import time
import traceback
from pathlib import Path

from relay.run_folder import faults

# Torch's own timeouts are shorter, and tell more. Building a strategy or compiling a model may take minutes.
LONGEST_SECONDS = 900.0
LOOK_SECONDS = 1.0


class Stalled(RuntimeError):
    """A process came to no further step."""


class _Last:
    step = time.monotonic()


def further() -> None:
    """This process has come further, such as by a step."""
    _Last.step = time.monotonic()


def watch(work: Path) -> None:
    """From now on end this process, rank 0, where it comes no further; the work folder gets where its threads were.

    The other ranks then end with it, and leave where they were.
    """
    further()
    threading.Thread(target=_watch, args=(work,), daemon=True).start()


def _watch(work: Path) -> None:
    while time.monotonic() - _Last.step < LONGEST_SECONDS:
        time.sleep(LOOK_SECONDS)
    where = [f"thread {thread}:\n{''.join(traceback.format_stack(f))}" for thread, f in sys._current_frames().items()]
    error = Stalled(f"no step has ended in {LONGEST_SECONDS:g} s; the log shows where each rank was")
    faults.record(work, error, where="\n".join(where))
    os._exit(1)
