"""How a job on this machine is tied to the driver that started it: it ends when the driver does.

On a cluster Slurm does this. Here the local driver names itself in the environment of everything that it starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

DRIVER = "TORCH_RELAY_DRIVER"  # "PID FOLDER" of a driver that runs its jobs on this machine
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def mark(folder: Path) -> str:
    """What a driver of this process that works on `folder` writes into `DRIVER`."""
    return f"{os.getpid()} {folder}"


def end_with_parent() -> None:
    """Be sent SIGTERM when the parent dies, even by SIGKILL. Linux only; elsewhere the trainers look for themselves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def follow_driver() -> bool:
    """Tie this process to the driver that started it, if one did; False where that driver is gone already.

    The process leaves the terminal's process group: Ctrl-C then reaches the driver alone, which passes on one SIGTERM.
    A second signal would disturb a launcher that waits for its processes to save.
    """
    given = os.environ.get(DRIVER)
    if given is None:
        return True
    with suppress(OSError):  # a leader of a session stays where it is
        os.setpgid(0, 0)
    end_with_parent()
    return _alive(int(given.split()[0]))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
