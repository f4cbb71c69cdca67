"""How processes are tied to those that started them: a job to its driver, a rank to its launcher.

A job on this machine ends with its driver; on a cluster Slurm does this, for what it still sees. A rank ends with its
launcher everywhere, because alone it would wait minutes for peers that never come. Drivers and launchers name
themselves in the environment.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from relay.base.ending import INTERRUPTED
from relay.chain.supervisor import end_with_parent

DRIVER = "TORCH_RELAY_DRIVER"  # "PID FOLDER" of a driver that runs its jobs on this machine
LAUNCHER = "TORCH_RELAY_LAUNCHER"  # the process that started this rank


def mark(folder: Path) -> str:
    """What a driver of this process that works on `folder` writes into `DRIVER`."""
    return f"{os.getpid()} {folder}"


def end_with_shell() -> None:
    """Kill this process, a job's nested Snakemake, when the shell that started it is gone.

    `scancel` ends that shell. Snakemake's own handler of SIGTERM takes a lock that its scheduler may hold just then, as
    while it waits for an output; it then waits for ever. Slurm does not kill it where it follows processes by their
    parents (`proctrack/linuxproc`): without its shell, it belongs to no job. No upstream issue known.
    """
    end_with_parent(signal.SIGKILL)


def lead() -> None:
    """Name this process in the environment: the ranks that it starts from now on end with it."""
    os.environ[LAUNCHER] = str(os.getpid())


def launcher() -> int:
    """The process that started this rank, also where it is gone already."""
    return int(os.environ.get(LAUNCHER) or os.getppid())


def follow_launcher() -> None:
    """Tie this rank to its launcher. Ends the process, without a fault, where the launcher is gone already.

    Until the training watches for signals, SIGTERM ends a process at once; then the training saves first.
    """
    end_with_parent()
    if os.getppid() != launcher():
        print("the launcher is gone: this process ends", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)


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
    return alive(int(given.split()[0]))


def alive(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
