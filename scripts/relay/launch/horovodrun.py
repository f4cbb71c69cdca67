"""Launcher `horovodrun`: Horovod's own program starts all processes of its node (document 000).

    python -m relay.launch.horovodrun COUNT ROLE WORK [arguments of the role]

On several nodes horovodrun would need ssh between them, which jobs do not have: there srun starts the processes.
SIGTERM, SIGINT and SIGUSR2 are passed on, so that the processes can save and end by themselves. horovodrun itself would
stop them at the first signal, and kill them after five seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from relay.base import lifeline
from relay.base.lifeline import LAUNCHER
from relay.launch import worker
from relay.launch.command_lines import free_port
from relay.process import meeting
from relay.process.interruption import SIGNALS

MODULE = "relay.launch.horovodrun"
PROCESS = "process"  # the first argument of a process that horovodrun has started
# What torchrun tells its processes, from what horovodrun tells its own.
VARIABLES = {
    "RANK": "HOROVOD_RANK",
    "LOCAL_RANK": "HOROVOD_LOCAL_RANK",
    "WORLD_SIZE": "HOROVOD_SIZE",
    "LOCAL_WORLD_SIZE": "HOROVOD_LOCAL_SIZE",
}


def main(count: int, program: list[str]) -> int:
    """Start `count` processes and wait for them. Returns 0, or 1 after one has failed and the others were ended."""
    from horovod.runner import gloo_run, launch

    lifeline.lead()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    # Its handlers of signals would take the place of those below.
    gloo_run.register_shutdown_event = threading.Event
    for number in SIGNALS:
        signal.signal(number, _pass_on)
    here = [f"--num-proc={count}", f"--hosts=localhost:{count}", "--gloo", "--disable-cache"]
    sys.argv = ["horovodrun", *here, sys.executable, "-u", "-m", MODULE, PROCESS, *program]
    try:
        meeting.horovod_listens_at("127.0.0.1")
        with meeting.made():
            launch.run_commandline()
    except RuntimeError as error:
        told = " ".join(str(error).split()).partition("The first process to do so was: ")[2] or str(error)
        print(f"horovodrun: a process ended early: {told}", file=sys.stderr)
        return 1
    return 0


def _pass_on(number: int, _: FrameType | None) -> None:
    """Send a signal to the processes; between them and this one are shells, and processes of horovodrun's own."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[3:5] == [MODULE, PROCESS]:
                process.send_signal(signal.SIGTERM if number == signal.SIGUSR2 else number)


def process(program: list[str]) -> None:
    """Do the work of one process, with the environment variables that torchrun would set."""
    os.environ.update({name: os.environ[its] for name, its in VARIABLES.items()})
    os.environ[LAUNCHER] = str(os.getppid())
    worker.work(program)


if __name__ == "__main__":
    if sys.argv[1] == PROCESS:
        process(sys.argv[2:])
    else:
        sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
